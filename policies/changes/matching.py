"""Matchers that recognise a change between two recipes, and the knobs that follow another knob.

A matcher returns true if its change was made between the recipe before and the one after, whatever else changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from policies.changes.degrees import DEGREES
from policies.changes.recompute import position
from trainer.recipe import Recipe
from trainer.recipe.layout import layout_of
from trainer.recipe.rules.nearest import LAYOUT, UNEVEN, VPP

Matcher = Callable[[Recipe, Recipe], bool]

_SPLIT = (LAYOUT, VPP, *UNEVEN, "overlap_p2p_comm", "microbatch_group_size_per_vp_stage")
_OFFLOADED_OPTIMIZER = ("optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d")
_HYBRIDEP = ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "NVLINK_DOMAIN_SIZE", "USE_MNNVL")
# Knobs that follow another one: they belong to its change, and are reverted with it
FOLLOWERS: dict[str, tuple[str, ...]] = {
    DEGREES["tp"]: ("sequence_parallel", "tp_comm_overlap", "expert_tensor_parallel_size"),
    DEGREES["ep"]: (*_HYBRIDEP, "expert_tensor_parallel_size"),
    DEGREES["pp"]: _SPLIT,
    VPP: _SPLIT,
    LAYOUT: _SPLIT,
    "recompute_granularity": ("recompute_modules", "recompute_method", "recompute_num_layers"),
    "recompute_modules": ("recompute_granularity", "recompute_method", "recompute_num_layers"),
    "moe_token_dispatcher_type": (
        *("moe_flex_dispatcher_backend", "moe_permute_fusion_into_hybridep", "moe_shared_expert_overlap"),
        *_HYBRIDEP,
    ),
    "moe_flex_dispatcher_backend": ("moe_permute_fusion_into_hybridep", *_HYBRIDEP),
    "cuda_graph_impl": ("cuda_graph_scope", "use_te_rng_tracker", "NCCL_GRAPH_REGISTER"),
    "overlap_moe_expert_parallel_comm": (
        *("CUDA_DEVICE_MAX_CONNECTIONS", "delay_wgrad_compute", "moe_shared_expert_overlap"),
    ),
    "manual_gc": ("manual_gc_interval",),
    "optimizer_cpu_offload": (*_OFFLOADED_OPTIMIZER, "use_precision_aware_optimizer"),
    "fine_grained_activation_offloading": ("offload_modules",),
    "precision": ("fp8_param_gather",),
}


def grows(size: str) -> Matcher:
    """Returns a matcher of changes that make a size larger."""
    return lambda before, after: _size(after, size) > _size(before, size)


def shrinks(size: str) -> Matcher:
    """Returns a matcher of changes that make a size smaller."""
    return lambda before, after: _size(after, size) < _size(before, size)


def turns_on(knob: str) -> Matcher:
    """Returns a matcher of changes that turn a switch on."""
    return lambda before, after: bool(after.knob(knob)) and not before.knob(knob)


def turns_off(*knobs: str) -> Matcher:
    """Returns a matcher of changes that turn one of the switches off."""
    return lambda before, after: any(before.knob(knob) and not after.knob(knob) for knob in knobs)


def moves(*knobs: str) -> Matcher:
    """Returns a matcher of any change of one of the knobs."""
    return lambda before, after: any(before.knob(knob) != after.knob(knob) for knob in knobs)


def becomes(knob: str, holds: Callable[[Any], bool]) -> Matcher:
    """Returns a matcher of changes of a knob to a value for which `holds` is true."""
    return lambda before, after: bool(before.knob(knob) != after.knob(knob) and holds(after.knob(knob)))


def all_of(*matchers: Matcher) -> Matcher:
    return lambda before, after: all(matches(before, after) for matches in matchers)


def less_recompute(before: Recipe, after: Recipe) -> bool:
    """Returns whether the change lowers the level of recompute."""
    return position(after) < position(before)


def more_recompute(before: Recipe, after: Recipe) -> bool:
    """Returns whether the change raises the level of recompute."""
    return position(after) > position(before)


def _size(recipe: Recipe, knob: str) -> float:
    """Returns the effective size: a pipeline layout decides VPP, expert TP that is not set equals TP."""
    if knob == VPP:
        return layout_of(recipe).vpp
    if knob == "expert_tensor_parallel_size":
        return layout_of(recipe).etp
    return float(recipe.knob(knob) or 0)
