"""Rules of Megatron-Core's local layers (without Transformer Engine): what they cannot do, and what engine megatron
refuses."""

from __future__ import annotations

from typing import Any

from trainer.recipe.identity import effective
from trainer.recipe.knobs import KNOBS
from trainer.recipe.predicates import all_of, among, on_cpu, on_gpu
from trainer.recipe.rules.examples import CPU_CLUSTER
from trainer.recipe.rules.rule import OURS, Rule, Suggestion, example
from trainer.recipe.settings import Settings

IMPL = "transformer_impl"
# knob -> its values that need Transformer Engine; () means any value that is not off
NEED_TRANSFORMER_ENGINE: dict[str, tuple[str, ...]] = {
    # ignored without it: trains in bf16
    "precision": ("fp8_blockwise", "fp8_current", "fp8_delayed", "mxfp8", "nvfp4"),
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
    IMPL: ("transformer_engine",),
    "attention_backend": ("flash", "fused"),
}
# fields of the architecture that local layers do not have
NEEDING_FIELDS = ("softmax_type", "window_size", "moe_latent_size")


def needing(recipe: Settings) -> dict[str, Any]:
    """Returns the recipe's active knobs that need Transformer Engine, with their values."""
    acting = {knob: effective(recipe, knob) for knob in NEED_TRANSFORMER_ENGINE}
    return {
        knob: value
        for knob, value in acting.items()
        if (value in NEED_TRANSFORMER_ENGINE[knob] if NEED_TRANSFORMER_ENGINE[knob] else value)
    }


def needing_fields(recipe: Settings) -> dict[str, Any]:
    """Returns the fields of the architecture that need Transformer Engine, with their values."""
    moved = recipe.architecture.model_dump(exclude_defaults=True)
    return {field: moved[field] for field in NEEDING_FIELDS if field in moved}


def _is_trained_by_megatron(recipe: Settings) -> bool:
    return recipe.burst.engine == "megatron"


def _without(recipe: Settings) -> Suggestion:
    return {knob: KNOBS[knob].default for knob in needing(recipe)}


ROWS = (
    Rule(
        id="engine-local-layers",
        binds=OURS,
        knobs=tuple(NEED_TRANSFORMER_ENGINE),
        broken=all_of(
            among(IMPL, "local"),
            on_gpu,
            _is_trained_by_megatron,
            lambda recipe: bool(needing(recipe)),
        ),
        message="transformer_impl is local, and other settings need Transformer Engine",
        nearest=_without,
        source="megatron-core 0.16.1 models/gpt/gpt_layer_specs.py get_gpt_layer_local_spec; engine megatron refuses",
        breaking=example(transformer_impl="local", moe_permute_fusion=True),
        passing=example(transformer_impl="local"),
    ),
    Rule(
        id="cpu-local-model",
        binds=OURS,
        knobs=(),
        broken=all_of(on_cpu, _is_trained_by_megatron, lambda recipe: bool(needing_fields(recipe))),
        message="softmax_type, window_size and moe_latent_size need Transformer Engine, which a CPU does not have",
        hint="remove them from model, or use burst.engine simulated",
        source="megatron-core 0.16.1 models/gpt/gpt_layer_specs.py get_gpt_layer_local_spec; engine megatron refuses",
        breaking=example(cluster=CPU_CLUSTER, model={"moe_latent_size": 256}, moe_grouped_gemm=False, precision="fp32"),
        passing=example(cluster=CPU_CLUSTER, moe_grouped_gemm=False, precision="fp32"),
    ),
)
