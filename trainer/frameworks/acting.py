"""Knobs of a recipe of which a trainer says what it runs with."""

from __future__ import annotations

from trainer.recipe import Recipe
from trainer.recipe.identity import acts
from trainer.recipe.knobs import KNOBS


def requested_knobs(recipe: Recipe) -> list[str]:
    """Knobs that the recipe sets and that can act; null requests nothing."""
    named = [name for name, knob in KNOBS.items() if knob.section != "knobs" or name in recipe.knobs]
    return [name for name in named if recipe.knob(name) is not None and acts(recipe, name)]
