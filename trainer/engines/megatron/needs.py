"""What a recipe asks for and this engine or machine cannot give: said, so that nothing is dropped silently.

Without Transformer Engine Megatron-Core refuses some of these late and ignores the others; here they are refused
together, before the model is built.
"""

from __future__ import annotations

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
