"""Layouts that people who know a model look for: published starting points, and the recipe's own."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.recipe.layout import sizes_of
from trainer.recipe.schema import Recipe
from trainer.recipe.tables import read_table

SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp")


@dataclass(frozen=True, kw_only=True)
class Familiar:
    sizes: tuple[int, ...]  # TP, PP, VPP, CP, EP, ETP
    source: str

    @classmethod
    def own(cls, recipe: Recipe) -> Familiar:
        return cls(sizes=sizes_of(recipe), source="the recipe's own")

    @property
    def words(self) -> str:
        """Returns the sizes other than 1: `TP2 PP8 VPP4 EP64`; `TP1 PP1 EP1` if there are none."""
        named = [f"{name.upper()}{size}" for name, size in zip(SIZES, self.sizes, strict=True) if size > 1]
        return " ".join(named) or "TP1 PP1 EP1"


def familiar_to(recipe: Recipe) -> list[Familiar]:
    """Returns the published starting points for this model and sequence length on this kind of GPU, for clusters of any
    size."""
    wanted = (recipe.model, recipe.cluster.gpu_name, recipe.training.seq_length)
    return [
        Familiar(sizes=tuple(int(row[name]) for name in SIZES), source=f"{row['source']}, {row['gpus']} GPUs")
        for row in read_table("familiar.csv", package="trainer.estimate.plan")
        if (row["model"], row["gpu"], int(row["seq_length"])) == wanted
    ]
