"""Plans rows on memory: activations and peak of one layer of each kind by recompute setting, memory outside the
allocator, fragmentation, and growth in the second step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer.microbenchmarks.group import Group
from trainer.microbenchmarks.row import Row
from trainer.microbenchmarks.shapes import alone, expert_sizes
from trainer.recipe import Recipe

Knobs = Mapping[str, Any]
NOTHING: Knobs = {"recompute_granularity": None}
FULL: Knobs = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SELECTIVE = {  # True: on CPUs, where moe_act is left out because it needs grouped GEMM
    False: ("norms and activation recomputed", ("layernorm", "moe_act")),
    True: ("attention recomputed", ("core_attn",)),
}


def rows(recipe: Recipe) -> list[Row]:
    """Returns rows of the memory a layer keeps for backward and needs at its peak, and on GPUs of memory the allocator
    does not see or cannot use."""
    return [*_layers(recipe), *_device(recipe)]


def _layers(recipe: Recipe) -> Iterator[Row]:
    sizes = expert_sizes(recipe)
    ep = sizes[len(sizes) // 2] if sizes else 1
    for moe in sorted(set(recipe.architecture.moe_layers), reverse=True):
        what, settings = "MoE" if moe else "dense", _settings(recipe)
        for kind, words, named in (("layer_kept", "layer", settings), ("layer_peak", "layer's peak", [*settings][::2])):
            for how in named:
                changes = alone(recipe, expert_model_parallel_size=ep, **settings[how])
                name = f"{what} {words}, {how}"
                yield Row(group="memory", kind=kind, name=name, unit="GiB", sizes={"moe": float(moe)}, changes=changes)


def _settings(recipe: Recipe) -> dict[str, Knobs]:
    """Returns the recompute settings to measure, by name; the recipe's own is the last if it recomputes selectively,
    and other modules."""
    how, modules = SELECTIVE[recipe.hardware.is_cpu]
    found = {
        "nothing recomputed": NOTHING,
        how: {"recompute_granularity": "selective", "recompute_modules": modules},
        "all of it recomputed": FULL,
    }
    if recipe.knob("recompute_granularity") == "selective" and recipe.knob("recompute_modules") != modules:
        own = {name: recipe.knob(name) for name in ("recompute_granularity", "recompute_modules")}
        found["as the recipe recomputes"] = own
    return found


def _device(recipe: Recipe) -> Iterator[Row]:
    if not recipe.hardware.is_cpu:
        plain = {"moe_token_dispatcher_type": "alltoall"}
        yield Row(group="memory", kind="outside", name="outside the allocator", unit="GiB", changes=plain)
        yield Row(group="memory", kind="fragmentation", name="lost to fragmentation", unit="share")
        yield Row(group="memory", kind="second_step", name="growth in the second step", unit="GiB")


GROUP = Group(name="memory", order=3, rows=rows)
