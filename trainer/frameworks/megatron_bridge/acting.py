"""Reads the knob values that Megatron-Bridge runs with from its final configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trainer.frameworks.framework import Plain
from trainer.frameworks.megatron_bridge.command import CONFIGURATION
from trainer.frameworks.megatron_bridge.read import read_config
from trainer.frameworks.megatron_lm.acting import acting_knobs
from trainer.recipe import Recipe
from trainer.recipe.identity import requested_knobs

# knobs that Bridge's configuration spells in its own way: torch's dtypes, whole-iteration graphs, precision recipes
OWN_WORDS = frozenset({"cuda_graph_impl", "moe_router_dtype", "pipeline_model_parallel_layout", "precision"})


def acting_in_folder(recipe: Recipe, folder: Path, log: str) -> dict[str, Plain]:
    """Returns the knob values in the configuration in the trainer's folder; without one, those in the arguments that
    its log prints."""
    configuration = folder / CONFIGURATION
    if configuration.exists():
        return acting_in_configuration(recipe, configuration.read_text(errors="replace"))
    return acting_knobs(recipe, log)


def acting_in_configuration(recipe: Recipe, text: str) -> dict[str, Plain]:
    """Returns the values of knobs that the recipe sets and that can act, from a configuration as YAML; {} if the text
    is none."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    found = read_config(data).knobs if isinstance(data, dict) else {}
    requested = (name for name in requested_knobs(recipe) if name in found)
    return {name: found[name] for name in requested if _is_comparable(recipe, name, found[name])}


def _is_comparable(recipe: Recipe, name: str, value: Any) -> bool:
    """Returns whether Bridge's value can be compared with the recipe's: equal plain types and spellings."""
    wanted = recipe.knob(name)
    plain = isinstance(wanted, bool | int | float) or (isinstance(wanted, str) and name not in OWN_WORDS)
    return plain and isinstance(value, type(wanted))
