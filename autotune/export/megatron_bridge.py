"""Target `megatron-bridge`: overrides `section.key=value` for a Bridge recipe of the same model.

Bridge recipes set knobs of their own, so every knob that can act is written, its default included. The architecture
stays the Bridge recipe's; a comment says what it has to be.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from autotune.export.target import Target
from autotune.looks.quantities import knob_value
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


def render(recipe: Recipe) -> str:
    """A bash array of overrides, each quoted, and the launch line that uses it."""
    knobs = [knob for knob in KNOBS.values() if acts(recipe, knob.name)]
    overrides = [word for knob in knobs for word in _overrides(recipe, knob)]
    per_node = recipe.cluster.gpus_per_node or recipe.hardware.gpus_per_node
    lines = [
        "#!/usr/bin/env bash",
        f"# {' '.join(recipe.name.split())}: Megatron-Bridge overrides written by moe-autotune.",
        *_architecture(recipe),
        *_not_expressed(recipe, knobs),
        "OVERRIDES=(",
        *(f"  {shlex.quote(word)}" for word in overrides),
        ")",
        "",
        f"./scripts/training/train.sh --nodes {recipe.cluster.nodes} --gpus-per-node {per_node} "
        '--recipe "${RECIPE:?name a Bridge recipe of this model}" --mode pretrain "$@" "${OVERRIDES[@]}"',
    ]
    return "\n".join(lines) + "\n"


def _overrides(recipe: Recipe, knob: Knob) -> Iterator[str]:
    if knob.megatron_bridge is None or _inside_named_precision(knob):
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


def _inside_named_precision(knob: Knob) -> bool:
    """A field of `mixed_precision`: an override can set that by name or by its fields, not both."""
    return (knob.megatron_bridge or "").startswith("mixed_precision.")


def _hydra(value: Any) -> str:
    """A value as Hydra's override grammar reads it; text with other letters than names have is quoted."""
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, str) and not value.replace("_", "").replace(".", "").isalnum():
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return knob_value(value)


def _architecture(recipe: Recipe) -> Iterator[str]:
    yield "# The architecture is that of the Bridge recipe they are laid over; it has to be:"
    for name, value in recipe.architecture.model_dump(exclude_defaults=True).items():
        yield f"#   {name}: {knob_value(value)}"


def _not_expressed(recipe: Recipe, knobs: list[Knob]) -> Iterator[str]:
    """Knobs whose value an override cannot carry, each with what to do about it."""
    low_precision = recipe.training.precision not in ("fp32", "bf16")
    for knob in knobs:
        value, path = recipe.knob(knob.name), knob.megatron_bridge
        if knob.name == "precision" and value not in PRECISIONS:
            why = "Bridge has no precision of that name"
        elif _inside_named_precision(knob) and (low_precision or value != knob.default):
            why = f"set {path} in the Bridge recipe: an override names mixed_precision, or its fields, not both"
        elif path is None and value != knob.default:
            why = "no path in Bridge's configuration"
        else:
            continue
        yield f"# NOT EXPRESSED: {knob.name}: {knob_value(value)} ({why})"


TARGET = Target(name="megatron-bridge", render=render)
