"""Leaves out changes without effect: a list in another order, a setting of a feature that is off, a default made
explicit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.recipe import Recipe
from trainer.recipe.identity import effective
from trainer.recipe.knobs import KNOBS

Changes = Mapping[str, tuple[Any, Any]]  # knob → (value before, value after)


def acting_changes(recipe: Recipe, changes: Changes) -> dict[str, tuple[Any, Any]]:
    """Returns the changes that led to `recipe`, without those that have no effect.

    A knob that this version does not know is kept.
    """
    back = {knob: was for knob, (was, _) in changes.items() if knob in KNOBS}
    before = recipe.replace(back) if back else recipe
    return {
        knob: pair
        for knob, pair in changes.items()
        if knob not in KNOBS or effective(before, knob) != effective(recipe, knob)
    }
