"""A combination of knob values that a machine's trainer refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.recipe import Recipe
from trainer.recipe.identity import acts, effective

INACTIVE = object()  # value of a knob that has no effect with the values of the others


@dataclass(frozen=True, kw_only=True)
class TrainerRefusal:
    """A combination of knob values that the trainer refuses.

    A recipe that has, for every knob of `values`, one of its values is refused, as `trial` was, with the message
    `evidence`; or would be, since the values need `missing` software, which the ranks of `trial` did not have.
    """

    values: Mapping[str, tuple[Any, ...]]
    trial: int
    evidence: str
    missing: str | None = None

    def covers(self, recipe: Recipe) -> bool:
        """Returns whether a recipe has the refused combination of values."""
        return all(acting(recipe, knob) in values for knob, values in self.values.items())


def acting(recipe: Recipe, knob: str) -> Any:
    """Returns the value with which the knob acts in the recipe, lists as tuples; INACTIVE if it has no effect."""
    value = effective(recipe, knob) if acts(recipe, knob) else INACTIVE
    return tuple(value) if isinstance(value, list) else value
