"""Leaves out changes that do nothing: another order of a list, a value of a part that is off, a default written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.recipe import Recipe
from trainer.recipe.identity import effective
from trainer.recipe.knobs import KNOBS

Changes = Mapping[str, tuple[Any, Any]]  # knob → (value before, value after)


def acting_changes(recipe: Recipe, changes: Changes) -> dict[str, tuple[Any, Any]]:
    """Returns the changes that led to `recipe`, without those that leave what it does as it was. A knob that this
    version does not know is kept."""
    back = {knob: was for knob, (was, _) in changes.items() if knob in KNOBS}
    before = recipe.replace(back) if back else recipe
    return {
        knob: pair
        for knob, pair in changes.items()
        if knob not in KNOBS or effective(before, knob) != effective(recipe, knob)
    }
