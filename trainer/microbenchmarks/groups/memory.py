"""Memory outside the allocator, of one layer by recompute setting, of fragmentation, and growth in the second step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.microbenchmarks.group import Group
from trainer.microbenchmarks.row import Row
from trainer.microbenchmarks.shapes import alone, expert_sizes
from trainer.recipe import Recipe

NOTHING: dict[str, Any] = {}
RECOMPUTES = {
    "nothing recomputed": NOTHING,
    "norms and activation recomputed": {
        "recompute_granularity": "selective",
        "recompute_modules": ("layernorm", "moe_act"),
    },
}
ON_CPU = {  # where no grouped product recomputes its activation
    "nothing recomputed": NOTHING,
    "attention recomputed": {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)},
}


def rows(recipe: Recipe) -> list[Row]:
    """Returns what a layer keeps for backward, and on GPUs what the allocator does not see or cannot use."""
    return [*_layers(recipe), *_device(recipe)]


def _layers(recipe: Recipe) -> Iterator[Row]:
    sizes = expert_sizes(recipe)
    ep = sizes[len(sizes) // 2] if sizes else 1
    moe = float(bool(sizes))
    for how, knobs in (ON_CPU if recipe.hardware.is_cpu else RECOMPUTES).items():
        changes = alone(recipe, expert_model_parallel_size=ep, **knobs)
        name = f"{'MoE' if moe else 'dense'} layer, {how}"
        yield Row(group="memory", kind="layer_kept", name=name, unit="GiB", sizes={"moe": moe}, changes=changes)


def _device(recipe: Recipe) -> Iterator[Row]:
    if not recipe.hardware.is_cpu:
        plain = {"moe_token_dispatcher_type": "alltoall"}
        yield Row(group="memory", kind="outside", name="outside the allocator", unit="GiB", changes=plain)
        yield Row(group="memory", kind="fragmentation", name="lost to fragmentation", unit="share")
        yield Row(group="memory", kind="second_step", name="growth in the second step", unit="GiB")


GROUP = Group(name="memory", order=3, rows=rows)
