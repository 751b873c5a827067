"""Shapes at which a probe measures a recipe's layers: knob changes that reduce the recipe to one rank's layer.

The changed recipe need not be able to train: sizes are read from the model and the cluster, and no rule is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainer.recipe import Recipe

# a layer alone on one rank: no other ranks, nothing recomputed, offloaded, captured or overlapped
ALONE: Mapping[str, Any] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "pipeline_model_parallel_layout": None,
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "context_parallel_size": 1,
    "expert_tensor_parallel_size": 1,
    "micro_batch_size": 1,
    "sequence_parallel": False,
    "recompute_granularity": None,
    "recompute_modules": None,
    "fine_grained_activation_offloading": False,
    "cpu_offloading": False,
    "cuda_graph_impl": "none",
    "overlap_moe_expert_parallel_comm": False,
    "delay_wgrad_compute": False,
    "moe_shared_expert_overlap": False,
    "tp_comm_overlap": False,
    "moe_token_dispatcher_type": "alltoall",
    "moe_permute_fusion": True,
    "moe_router_fusion": True,
    "moe_grouped_gemm": True,
    "cpu_affinity": "spread",
    "use_megatron_fsdp": False,
}
ON_CPU: Mapping[str, Any] = {"moe_permute_fusion": False, "moe_router_fusion": False, "moe_grouped_gemm": False}
WIDEST = 64  # largest EP at which layers are measured
FLEX = ("deepep", "hybridep")  # libraries of the flex dispatcher that the estimator models


def alone(recipe: Recipe, **changes: Any) -> dict[str, Any]:
    """Returns the knob changes that reduce a recipe to one rank's layer, plus `changes`."""
    return {**ALONE, **(ON_CPU if recipe.hardware.is_cpu else {}), **changes}


def domain(recipe: Recipe) -> int:
    """Returns the number of GPUs in one NVLink domain; on CPUs, the ranks of a node."""
    return max(recipe.hardware.nvlink_domain_gpus, recipe.ranks_per_node)


def expert_sizes(recipe: Recipe) -> list[int]:
    """Returns EP sizes, from few tokens per expert to many; empty for a model without experts."""
    experts = recipe.architecture.num_moe_experts
    if experts is None:
        return []
    possible = [size for size in range(1, min(experts, recipe.world_size, WIDEST) + 1) if _divides(recipe, size)]
    wanted = (2, 8, WIDEST)
    return sorted({max((size for size in possible if size <= most), default=1) for most in wanted})


def dispatch_sizes(recipe: Recipe) -> dict[str, int]:
    """Returns the EP sizes at which a probe measures dispatch, by place: inside a domain, across two."""
    near = domain(recipe)
    possible = [size for size in range(2, min(2 * near, recipe.world_size) + 1) if _divides(recipe, size)]
    found = {"inside a domain": [size for size in possible if size <= near]}
    found["across domains"] = [size for size in possible if size > near]
    return {where: max(sizes) for where, sizes in found.items() if sizes and recipe.architecture.num_moe_experts}


def probed_nodes(recipe: Recipe) -> int:
    """Returns the number of nodes a probe needs: those of two NVLink domains; on CPUs all nodes."""
    if recipe.hardware.is_cpu:
        return recipe.cluster.nodes
    return min(recipe.cluster.nodes, math.ceil(2 * domain(recipe) / recipe.ranks_per_node))


def _divides(recipe: Recipe, size: int) -> bool:
    return (recipe.architecture.num_moe_experts or 1) % size == 0 and recipe.world_size % size == 0


def dispatchers(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Returns the knobs of every dispatcher that the hardware supports and the estimator models, by library."""
    plain = ("alltoall", "allgather")
    flex = [name for name in recipe.hardware.flex_backends or () if name in FLEX]
    return {name: {"moe_token_dispatcher_type": name} for name in plain} | {
        name: {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": name} for name in flex
    }
