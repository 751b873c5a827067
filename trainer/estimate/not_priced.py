"""Lists the settings of a recipe that no closed form reads: the estimate does not depend on them.

`not_priced.csv` has one row per knob: the parts (time, memory) that ignore it, on which devices (empty: all), and why.
A row without parts is a knob that has no cost. The optimizer is not a knob, so it is read from the user's own command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from trainer.recipe.identity import acts, effective
from trainer.recipe.knobs import KNOBS
from trainer.recipe.schema import Recipe
from trainer.recipe.tables import read_table

OPTIMIZER_SETTINGS = ("--optimizer", "optimizer.optimizer")  # the setting of Megatron-LM, and of Megatron-Bridge
PRICED_OPTIMIZER = "adam"
OTHER_OPTIMIZER = (
    "memory and step are counted as Adam's: Muon, for one, keeps one moment and computes Newton-Schulz steps"
)


@dataclass(frozen=True, kw_only=True)
class NotPriced:
    """One setting that estimates ignore. `parts`: time, memory or both."""

    setting: str
    parts: tuple[str, ...]
    why: str


@cache
def table() -> dict[str, dict[str, str]]:
    """Returns the rows of `not_priced.csv` by knob."""
    return {row["knob"]: row for row in read_table("not_priced.csv", package="trainer.estimate")}


def not_priced(recipe: Recipe) -> tuple[NotPriced, ...]:
    """Returns the settings of a recipe that differ from their defaults, can act, and that estimates ignore."""
    return (*_knobs(recipe), *_optimizer(() if recipe.trainer is None else recipe.trainer.command))


def _knobs(recipe: Recipe) -> Iterator[NotPriced]:
    for name, row in table().items():
        elsewhere = row["where"] == "gpu" and recipe.hardware.is_cpu
        if row["parts"] and not elsewhere and acts(recipe, name) and effective(recipe, name) != KNOBS[name].default:
            yield NotPriced(setting=name, parts=tuple(row["parts"].split()), why=row["why"])


def _optimizer(command: Sequence[str]) -> Iterator[NotPriced]:
    words = [word for each in command for word in each.split("=", 1)]
    for word, value in pairwise(words):
        if word.lstrip("+") in OPTIMIZER_SETTINGS and value != PRICED_OPTIMIZER:
            yield NotPriced(setting=f"optimizer {value}", parts=("time", "memory"), why=OTHER_OPTIMIZER)
