"""Which value of each knob the trainer says it runs with: its own argument dump or configuration, after its own
validation."""

from __future__ import annotations

from typing import Any

import yaml

from trainer.command_line.megatron_bridge.read import read_config
from trainer.command_line.megatron_lm.arguments import defaults
from trainer.command_line.megatron_lm.log import logged_values
from trainer.command_line.megatron_lm.read import read_values
from trainer.recipe import Recipe
from trainer.recipe.identity import acts
from trainer.recipe.knobs import KNOBS

# Bridge puts torch's dtypes, a graph of the whole iteration and its own precision recipes in their place
OWN_WORDS = frozenset({"cuda_graph_impl", "moe_router_dtype", "pipeline_model_parallel_layout", "precision"})
Plain = str | int | float | bool | None


def acting_knobs(recipe: Recipe, log: str) -> dict[str, Plain]:
    """Of a rank's log, knobs that the recipe sets and that can act; {} where it prints no arguments. Null asks for
    nothing and is left out."""
    values = logged_values(log)
    if not values:
        return {}
    found = read_values({**defaults(), **values}, world_size=recipe.world_size).knobs
    return {name: _plain(found[name]) for name in _asked(recipe) if name in found}


def acting_in_configuration(recipe: Recipe, text: str) -> dict[str, Plain]:
    """The same of the configuration that Megatron-Bridge dumps as YAML; {} for a text that is none."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    found = read_config(data).knobs if isinstance(data, dict) else {}
    return {name: found[name] for name in _asked(recipe) if name in found and _says_the_same(recipe, name, found[name])}


def _asked(recipe: Recipe) -> list[str]:
    """Knobs that the recipe sets and that can act; null asks for nothing."""
    named = [name for name, knob in KNOBS.items() if knob.section != "knobs" or name in recipe.knobs]
    return [name for name in named if recipe.knob(name) is not None and acts(recipe, name)]


def _says_the_same(recipe: Recipe, name: str, value: Any) -> bool:
    """Whether both are of one plain kind: switches and numbers, and words that Bridge does not spell in its own way."""
    wanted = recipe.knob(name)
    plain = isinstance(wanted, bool | int | float) or (isinstance(wanted, str) and name not in OWN_WORDS)
    return plain and isinstance(value, type(wanted))


def _plain(value: Any) -> Plain:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value
