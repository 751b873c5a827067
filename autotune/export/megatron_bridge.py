"""Target `megatron-bridge`: overrides `section.key=value` for a Bridge recipe of the same model.

Bridge recipes set knobs of their own, so every knob that can act is written, its default included. The architecture
stays the Bridge recipe's; a comment says what it has to be.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from autotune.export.target import Context, Target
from autotune.looks.quantities import knob_value
from trainer.command_line.megatron_bridge.overrides import PRECISIONS, inside_named_precision, overrides
from trainer.recipe import Recipe
from trainer.recipe.identity import acts
from trainer.recipe.knobs import KNOBS, Knob


def render(recipe: Recipe, context: Context) -> str:
    """A bash array of overrides, each quoted, and the launch line that uses it."""
    knobs = [knob for knob in KNOBS.values() if acts(recipe, knob.name)]
    per_node = recipe.cluster.gpus_per_node or recipe.hardware.gpus_per_node
    lines = [
        "#!/usr/bin/env bash",
        f"# {' '.join(recipe.name.split())}: Megatron-Bridge overrides written by moe-autotune.",
        *(f"# {line}" for line in context.origin),
        *_architecture(recipe),
        *_not_expressed(recipe, knobs),
        "OVERRIDES=(",
        *(f"  {shlex.quote(word)}" for word in overrides(recipe)),
        ")",
        "",
        f"./scripts/training/train.sh --nodes {recipe.cluster.nodes} --gpus-per-node {per_node} "
        '--recipe "${RECIPE:?name a Bridge recipe of this model}" --mode pretrain "$@" "${OVERRIDES[@]}"',
    ]
    return "\n".join(lines) + "\n"


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
        elif inside_named_precision(knob) and (low_precision or value != knob.default):
            why = f"set {path} in the Bridge recipe: an override names mixed_precision, or its fields, not both"
        elif path is None and value != knob.default:
            why = "no path in Bridge's configuration"
        else:
            continue
        yield f"# NOT EXPRESSED: {knob.name}: {knob_value(value)} ({why})"


TARGET = Target(name="megatron-bridge", render=render)
