"""Which value of each knob the trainer says it runs with: its own argument dump, after its own validation."""

from __future__ import annotations

from typing import Any

from trainer.command_line.megatron_lm.arguments import defaults
from trainer.command_line.megatron_lm.log import logged_values
from trainer.command_line.megatron_lm.read import read_values
from trainer.recipe import Recipe
from trainer.recipe.identity import acts
from trainer.recipe.knobs import KNOBS

Plain = str | int | float | bool | None


def acting_knobs(recipe: Recipe, log: str) -> dict[str, Plain]:
    """Of a rank's log, knobs that the recipe sets and that can act; {} where it prints no arguments. Null asks for
    nothing and is left out."""
    values = logged_values(log)
    if not values:
        return {}
    found = read_values({**defaults(), **values}, world_size=recipe.world_size).knobs
    asked = [name for name, knob in KNOBS.items() if knob.section != "knobs" or name in recipe.knobs]
    told = [name for name in asked if name in found and recipe.knob(name) is not None and acts(recipe, name)]
    return {name: _plain(found[name]) for name in told}


def _plain(value: Any) -> Plain:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value
