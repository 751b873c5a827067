"""Changing a degree of parallelism together with the knobs that must follow it.

Each function lists knob changes in order of preference. Whether one is legal is for `trainer.recipe.rules`; what
stands here is what a person would change in the same breath (sequence parallel with TP, VPP with PP, the expert
tensor degree with EP).
"""

from __future__ import annotations

from typing import Any

from trainer.recipe import Recipe

KnobChanges = dict[str, Any]

DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}


def larger(recipe: Recipe, degree: str) -> list[int]:
    """Degrees above the current one that the ranks can hold, nearest first (powers of two times it)."""
    now = int(recipe.knob(DEGREES[degree]))
    sizes = []
    while (now := now * 2) <= recipe.world_size:
        sizes.append(now)
    return sizes


def smaller(recipe: Recipe, degree: str) -> list[int]:
    """Degrees below the current one, smallest first: the least model parallelism is what is wanted."""
    now = int(recipe.knob(DEGREES[degree]))
    return [size for size in range(1, now) if now % size == 0]


def with_tp(recipe: Recipe, size: int) -> list[KnobChanges]:
    """Sequence parallel follows TP (MoE with TP needs it); the experts stay whole first, split like TP second."""
    changes: KnobChanges = {DEGREES["tp"]: size, "sequence_parallel": size > 1}
    if size == 1:
        changes["tp_comm_overlap"] = False
    if recipe.architecture.num_moe_experts is None:
        return [changes]
    return [
        changes | {"expert_tensor_parallel_size": 1},
        changes | {"expert_tensor_parallel_size": size},
    ]


def with_pp(recipe: Recipe, size: int) -> list[KnobChanges]:
    """VPP is kept where it stays legal, else dropped with the overlap that needs it."""
    plain: KnobChanges = {
        DEGREES["pp"]: size,
        "virtual_pipeline_model_parallel_size": None,
        "overlap_p2p_comm": False,
    }
    kept: list[KnobChanges] = []
    if size > 1 and recipe.knob("virtual_pipeline_model_parallel_size"):
        kept = [{DEGREES["pp"]: size}]
    return [*kept, plain]


def with_ep(recipe: Recipe, size: int) -> list[KnobChanges]:
    """EP=1 leaves nothing to dispatch: its overlaps go, and expert TP must equal TP (replicas would drift apart)."""
    if size > 1:
        return [{DEGREES["ep"]: size}, {DEGREES["ep"]: size, "expert_tensor_parallel_size": 1}]
    return [
        {
            DEGREES["ep"]: 1,
            "expert_tensor_parallel_size": recipe.knob(DEGREES["tp"]),
            "overlap_moe_expert_parallel_comm": False,
            "delay_wgrad_compute": False,
        }
    ]


def with_cp(recipe: Recipe, size: int) -> list[KnobChanges]:
    return [{DEGREES["cp"]: size}]
