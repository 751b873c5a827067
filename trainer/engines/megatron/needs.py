"""What a recipe asks for and this engine or machine cannot give: said, so that nothing is dropped silently.

Without Transformer Engine Megatron-Core refuses some of these late and ignores the others; here they are refused
together, before the model is built. What needs a training loop of its own runs without it, and the outcome says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.recipe import Recipe
from trainer.recipe.identity import effective

# knob -> values of it that Transformer Engine alone can do; () means any value that is not off
NEED_TRANSFORMER_ENGINE: dict[str, tuple[str, ...]] = {
    "precision": ("fp8_blockwise", "fp8_current", "fp8_delayed", "mxfp8", "nvfp4"),  # ignored: trains in bf16
    "fp8_param_gather": (),
    "tp_comm_overlap": (),  # ignored by local layers
    "moe_permute_fusion": (),
    "moe_router_fusion": (),
    "delay_wgrad_compute": (),
    "overlap_dispatch_backward_with_experts_wgrad": (),
    "use_transformer_engine_op_fuser": (),
    "cpu_offloading": (),
    "fine_grained_activation_offloading": (),
    "use_precision_aware_optimizer": (),
    "use_te_rng_tracker": (),
    "cuda_graph_impl": ("transformer_engine",),
    "transformer_impl": ("transformer_engine",),
    "attention_backend": ("flash", "fused"),
}

# fields of the architecture that the layers standing in for its attention do not have
FIELDS_THAT_NEED_TRANSFORMER_ENGINE = ("softmax_type", "window_size", "moe_latent_size")


@dataclass(frozen=True, kw_only=True)
class NotDriven:
    """A knob that Megatron-LM's training loop carries out and this engine's does not; `acting` is what acts instead."""

    knob: str
    asked: Callable[[Recipe], bool]
    acting: Any
    why: str


NOT_DRIVEN = (
    NotDriven(
        knob="cuda_graph_impl",
        asked=lambda recipe: (
            effective(recipe, "cuda_graph_impl") in ("transformer_engine", "full_iteration")
            or "full_iteration" in (effective(recipe, "cuda_graph_scope") or ())
        ),
        acting="none",
        why="these graphs are captured by the training loop, and this engine captures only local ones by layer",
    ),
    NotDriven(
        knob="use_megatron_fsdp",
        asked=lambda recipe: bool(effective(recipe, "use_megatron_fsdp")),
        acting=False,
        why="this engine wraps the model in Megatron's DDP",
    ),
)


def missing_transformer_engine(recipe: Recipe) -> str | None:
    """What to tell a user whose recipe needs Transformer Engine where there is none; None when nothing does."""
    asked = {knob: effective(recipe, knob) for knob in NEED_TRANSFORMER_ENGINE}
    needing = [
        f"{knob}: {value}"
        for knob, value in asked.items()
        if (value in NEED_TRANSFORMER_ENGINE[knob] if NEED_TRANSFORMER_ENGINE[knob] else value)
    ]
    moved = recipe.architecture.model_dump(exclude_defaults=True)
    needing += [f"{field}: {moved[field]}" for field in FIELDS_THAT_NEED_TRANSFORMER_ENGINE if field in moved]
    if not needing:
        return None
    return (
        f"Transformer Engine cannot be used here, and needs it: {', '.join(needing)} (pip install 'moe-autotune[gpu]')"
    )


def not_driven(recipe: Recipe) -> tuple[NotDriven, ...]:
    """The rows that the recipe asks for."""
    return tuple(row for row in NOT_DRIVEN if row.asked(recipe))
