"""Overrides `section.key=value` of a Megatron-Bridge recipe, in Hydra's grammar.

Bridge recipes set knobs of their own, so every knob that can act is written, its default included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.recipe import Recipe
from trainer.recipe.identity import acts, effective
from trainer.recipe.knobs import KNOBS, Knob

# Names of Bridge's mixed precision recipes (src/megatron/bridge/training/mixed_precision.py, main 067f987d)
PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp8_delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8_current": "bf16_with_fp8_current_scaling_mixed",
    "fp8_blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
ALSO = {"seq_length": "model.seq_length"}  # Bridge wants the same value in two places


def overrides(recipe: Recipe) -> list[str]:
    """Every override the recipe needs, unquoted."""
    knobs = (knob for knob in KNOBS.values() if acts(recipe, knob.name))
    return [word for knob in knobs for word in _overrides(recipe, knob)]


def _overrides(recipe: Recipe, knob: Knob) -> Iterator[str]:
    if knob.megatron_bridge is None or inside_named_precision(knob):
        return
    value = _bridge_value(knob, effective(recipe, knob.name))
    if value is None and (knob.acts == "environment" or knob.name == "precision"):
        return
    yield f"{knob.megatron_bridge}={_hydra(value)}"
    if knob.name in ALSO:
        yield f"{ALSO[knob.name]}={_hydra(value)}"


def _bridge_value(knob: Knob, value: Any) -> Any:
    if knob.name == "precision":
        return PRECISIONS.get(value)
    return f"torch.{value}" if knob.name.endswith("_dtype") and knob.acts == "optimizer" else value


def inside_named_precision(knob: Knob) -> bool:
    """A field of `mixed_precision`: an override can set that by name or by its fields, not both."""
    return (knob.megatron_bridge or "").startswith("mixed_precision.")


def _hydra(value: Any) -> str:
    """A value as Hydra's override grammar reads it; text with other letters than names have is quoted."""
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, str) and not value.replace("_", "").replace(".", "").isalnum():
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
