"""Reads the knob values that Megatron-LM runs with from the arguments it logs after its own validation."""

from __future__ import annotations

from trainer.frameworks.framework import Plain
from trainer.frameworks.megatron_lm.arguments import defaults
from trainer.frameworks.megatron_lm.log import logged_values
from trainer.frameworks.megatron_lm.read import read_values
from trainer.recipe import Recipe
from trainer.recipe.identity import requested_knobs
from trainer.values import as_reported


def acting_knobs(recipe: Recipe, log: str) -> dict[str, Plain]:
    """Returns the values of knobs that the recipe sets and that can act, from a rank's log; {} if it prints no
    arguments."""
    values = logged_values(log)
    if not values:
        return {}
    found = read_values({**defaults(), **values}, world_size=recipe.world_size).knobs
    return {name: as_reported(found[name]) for name in requested_knobs(recipe) if name in found}
