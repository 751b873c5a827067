"""Lists where a dry run deviates from the recipe, and what it cannot know, so that nothing is dropped silently.

It imports no torch, since the tuner's process reads the table too, to compare the dry run with the closed form of the
same recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.recipe import Recipe
from trainer.recipe.identity import effective


@dataclass(frozen=True, kw_only=True)
class Substitution:
    """A knob that the dry run sets to `runs` if `unlike` is true for the recipe's value."""

    knob: str
    runs: Any
    why: str
    unlike: Callable[[Any], bool] = bool


NO_TRANSFORMER_ENGINE = "needs Transformer Engine's kernels"
EVEN_LOAD = "shapes must not depend on routing: every expert gets its even share, as if it were its capacity"
OTHER_MEMORY = "moves memory that a dry run does not follow"
SUBSTITUTIONS = (
    Substitution(
        knob="precision",
        runs="bf16",
        why="quantized weights and inputs need Transformer Engine",
        unlike=lambda value: value not in ("fp32", "bf16"),
    ),
    Substitution(
        knob="moe_token_dispatcher_type",
        runs="alltoall",
        why="DeepEP and Hybrid-EP need a GPU; all-gather has no static shapes",
        unlike=lambda value: value != "alltoall",
    ),
    Substitution(knob="moe_expert_capacity_factor", runs=1.0, why=EVEN_LOAD, unlike=lambda value: value is None),
    Substitution(knob="moe_pad_expert_input_to_capacity", runs=True, why=EVEN_LOAD, unlike=lambda value: not value),
    Substitution(
        knob="moe_router_load_balancing_type",
        runs="aux_loss",
        why="Megatron-Core refuses Sinkhorn with a capacity",
        unlike=lambda value: value == "sinkhorn",
    ),
    Substitution(
        knob="cuda_graph_impl", runs="none", why="graphs are captured on a GPU", unlike=lambda value: value != "none"
    ),
    Substitution(
        knob="cross_entropy_fusion_impl", runs="native", why=NO_TRANSFORMER_ENGINE, unlike=lambda v: v != "native"
    ),
    Substitution(knob="use_megatron_fsdp", runs=False, why="the model is wrapped in Megatron's DDP"),
    Substitution(knob="optimizer_cpu_offload", runs=False, why=OTHER_MEMORY),
    Substitution(knob="cpu_offloading", runs=False, why=OTHER_MEMORY),
    Substitution(knob="fine_grained_activation_offloading", runs=False, why=OTHER_MEMORY),
    Substitution(knob="overlap_moe_expert_parallel_comm", runs=False, why="its schedule runs on CUDA streams"),
    *(
        Substitution(knob=knob, runs=False, why=NO_TRANSFORMER_ENGINE)
        for knob in (
            "fp8_output_proj",
            "fp8_param_gather",
            "reuse_grad_buf_for_mxfp8_param_ag",
            "tp_comm_overlap",
            "moe_permute_fusion",
            "moe_router_fusion",
            "delay_wgrad_compute",
            "use_te_rng_tracker",
            "use_transformer_engine_op_fuser",
            "moe_router_padding_for_quantization",
            "nccl_ub",
        )
    ),
)
CANNOT_KNOW = (
    "which activations fused kernels keep: layers are Megatron-Core's local ones, with attention as a flash kernel's",
    "the load of the most loaded expert: every expert gets its even share",
    "the allocator's slack, CUDA context, NCCL buffers, workspaces of GEMMs",
    "time: tensors have no data",
)


def substitutes(recipe: Recipe) -> dict[str, Any]:
    """Returns the knobs that the dry run sets to other values than the recipe."""
    return {row.knob: row.runs for row in SUBSTITUTIONS if _is_substituted(recipe, row)}


def substituted(recipe: Recipe) -> list[dict[str, Any]]:
    """Returns each substitution with the recipe's value and the reason, as in the document."""
    return [
        {"knob": row.knob, "asked": recipe.knob(row.knob), "ran": row.runs, "why": row.why}
        for row in SUBSTITUTIONS
        if _is_substituted(recipe, row)
    ]


def _is_substituted(recipe: Recipe, row: Substitution) -> bool:
    moe_only = row.why is EVEN_LOAD or row.knob == "moe_token_dispatcher_type"
    if moe_only and recipe.architecture.num_moe_experts is None:
        return False
    return row.unlike(recipe.knob(row.knob) if row.why is EVEN_LOAD else effective(recipe, row.knob))
