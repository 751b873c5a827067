"""Layouts that people who know a model would look for: published starting points, and the recipe's own."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

from trainer.recipe.layout import sizes_of
from trainer.recipe.schema import Recipe

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
        """`TP2 PP8 VPP4 EP64`: what is not one."""
        named = [f"{name.upper()}{size}" for name, size in zip(SIZES, self.sizes, strict=True) if size > 1]
        return " ".join(named) or "one of each"


def familiar_to(recipe: Recipe) -> list[Familiar]:
    """Starting points of this model and sequence on this kind of GPU, whatever the cluster they were given for."""
    wanted = (recipe.model, recipe.cluster.gpu, recipe.training.seq_length)
    text = (files("trainer.estimate") / "familiar.csv").read_text(encoding="utf-8")
    return [
        Familiar(sizes=tuple(int(row[name]) for name in SIZES), source=f"{row['source']}, {row['gpus']} GPUs")
        for row in csv.DictReader(text.splitlines())
        if (row["model"], row["gpu"], int(row["seq_length"])) == wanted
    ]
