"""Activation recompute: what full and selective need, and modules that exist in the model."""

from trainer.recipe.layout import layers_by_stage
from trainer.recipe.predicates import (
    all_of,
    among,
    any_of,
    has_dense_layers,
    has_shared_experts,
    is_moe,
    negated,
    off,
    on,
    recomputed,
)
from trainer.recipe.rules.rule import FindingKind, Rule, Suggestion, example, fixed, without
from trainer.recipe.schema import Recipe

GRANULARITY = "recompute_granularity"
MODULES = "recompute_modules"
METHOD = "recompute_method"
LAYERS = "recompute_num_layers"
_full = among(GRANULARITY, "full")
_selective = among(GRANULARITY, "selective")


def _is_mla(recipe: Recipe) -> bool:
    return recipe.architecture.multi_latent_attention


def _most(recipe: Recipe) -> int:
    return max(1, *layers_by_stage(recipe))


def _grouped(recipe: Recipe) -> Suggestion:
    """Grouped GEMM, or another choice of modules where a CPU in fp32 has none."""
    if recipe.hardware.is_cpu and recipe.training.precision == "fp32":
        return without(MODULES, "moe_act")(recipe)
    return {"moe_grouped_gemm": True}


ROWS = (
    Rule(
        id="full-needs-method",
        knobs=(GRANULARITY, METHOD),
        broken=all_of(_full, off(METHOD)),
        message="full recompute without recompute_method",
        nearest=fixed(recompute_method="uniform"),
        source="transformer_config.py:1916",
        breaking=example(recompute_granularity="full", recompute_num_layers=1),
        passing=example(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1),
    ),
    Rule(
        id="full-needs-layers",
        knobs=(GRANULARITY, LAYERS),
        broken=all_of(_full, off(LAYERS)),
        message="full recompute without recompute_num_layers",
        nearest=fixed(recompute_num_layers=1),
        source="transformer_config.py:1922",
        breaking=example(recompute_granularity="full", recompute_method="block"),
        passing=example(recompute_granularity="full", recompute_method="block", recompute_num_layers=4),
    ),
    Rule(
        id="recompute-layers-exist",
        knobs=(LAYERS,),
        broken=all_of(_full, lambda recipe: (recipe.knob(LAYERS) or 0) > _most(recipe)),
        message="recompute_num_layers {recompute_num_layers} exceeds the layers a pipeline rank holds",
        nearest=lambda recipe: {LAYERS: _most(recipe)},
        source="transformer_config.py: between 1 and num_layers_per_pipeline_rank",
        breaking=example(recompute_granularity="full", recompute_method="block", recompute_num_layers=9),
        passing=example(recompute_granularity="full", recompute_method="block", recompute_num_layers=8),
    ),
    Rule(
        id="selective-without-layers",
        knobs=(GRANULARITY, LAYERS, METHOD),
        broken=all_of(_selective, any_of(on(LAYERS), on(METHOD))),
        message="selective recompute with recompute_num_layers or recompute_method, which belong to full",
        nearest=fixed(recompute_num_layers=None, recompute_method=None),
        source="transformer_config.py:1931",
        breaking=example(recompute_granularity="selective", recompute_num_layers=1),
        passing=example(recompute_granularity="selective"),
    ),
    Rule(
        id="modules-without-selective",
        kind=FindingKind.WARNING,
        knobs=(GRANULARITY, MODULES),
        broken=all_of(on(MODULES), negated(_selective)),
        message="recompute_modules {recompute_modules} do nothing: recompute_granularity is {recompute_granularity}",
        nearest=fixed(recompute_granularity="selective", recompute_method=None, recompute_num_layers=None),
        source="transformer_config.py: read only when selective; four published recipes carry them in vain",
        breaking=example(recompute_modules=("layernorm",)),
        passing=example(recompute_modules=("layernorm",), recompute_granularity="selective"),
    ),
    Rule(
        id="moe-act-needs-grouped",
        knobs=(MODULES, "moe_grouped_gemm"),
        broken=all_of(recomputed("moe_act"), is_moe, off("moe_grouped_gemm")),
        message="moe_act is recomputed without moe_grouped_gemm",
        nearest=_grouped,
        source="transformer_config.py:1966",
        breaking=example(recompute_granularity="selective", recompute_modules=("moe_act",), moe_grouped_gemm=False),
        passing=example(recompute_granularity="selective", recompute_modules=("moe_act",)),
    ),
    Rule(
        id="mla-up-proj-needs-mla",
        knobs=(MODULES,),
        broken=all_of(recomputed("mla_up_proj"), negated(_is_mla)),
        message="mla_up_proj is recomputed in a model without multi-latent attention",
        nearest=without(MODULES, "mla_up_proj"),
        source="transformer_config.py:1971",
        breaking=example(recompute_granularity="selective", recompute_modules=("mla_up_proj", "layernorm")),
        passing=example(recompute_granularity="selective", recompute_modules=("layernorm",)),
    ),
    Rule(
        id="moe-modules-need-experts",
        knobs=(MODULES,),
        broken=all_of(recomputed("moe", "moe_act", "shared_experts"), negated(is_moe)),
        message="recompute_modules {recompute_modules} name experts, and the model has none",
        nearest=without(MODULES, "moe", "moe_act", "shared_experts"),
        source="megatron/core/transformer/moe/moe_layer.py reads them",
        breaking=example(
            model={"num_moe_experts": None},
            expert_model_parallel_size=1,
            recompute_granularity="selective",
            recompute_modules=("moe", "mlp"),
        ),
        passing=example(recompute_granularity="selective", recompute_modules=("moe", "mlp")),
    ),
    Rule(
        id="shared-experts-exist",
        kind=FindingKind.WARNING,
        knobs=(MODULES,),
        broken=all_of(recomputed("shared_experts"), is_moe, negated(has_shared_experts)),
        message="shared_experts are recomputed in a model that has none",
        nearest=without(MODULES, "shared_experts"),
        source="megatron/core/transformer/moe/moe_layer.py reads it where shared experts are built",
        breaking=example(
            model={"moe_shared_expert_intermediate_size": None},
            recompute_granularity="selective",
            recompute_modules=("shared_experts", "layernorm"),
        ),
        passing=example(recompute_granularity="selective", recompute_modules=("shared_experts", "layernorm")),
    ),
    Rule(
        id="dense-mlp-exists",
        kind=FindingKind.WARNING,
        knobs=(MODULES,),
        broken=all_of(recomputed("mlp"), negated(has_dense_layers)),
        message="mlp is recomputed in a model without dense layers: it covers those only",
        nearest=without(MODULES, "mlp"),
        source="megatron/core/transformer/transformer_layer.py: recompute_mlp acts on MLP that is no MoE layer",
        breaking=example(
            model={"moe_layer_freq": 1}, recompute_granularity="selective", recompute_modules=("mlp", "layernorm")
        ),
        passing=example(recompute_granularity="selective", recompute_modules=("mlp", "layernorm")),
    ),
    Rule(
        id="shared-recompute-overlap",
        knobs=(MODULES, "moe_shared_expert_overlap"),
        broken=all_of(recomputed("shared_experts"), has_shared_experts, on("moe_shared_expert_overlap")),
        message="shared_experts are recomputed and overlapped at once",
        nearest=without(MODULES, "shared_experts"),
        source="transformer_config.py:1997",
        breaking=example(
            recompute_granularity="selective",
            recompute_modules=("shared_experts", "layernorm"),
            moe_shared_expert_overlap=True,
        ),
        passing=example(recompute_granularity="selective", recompute_modules=("shared_experts", "layernorm")),
    ),
    Rule(
        id="delayed-scaling-recompute",
        knobs=(MODULES, "precision"),
        broken=all_of(recomputed("moe_act", "layernorm"), among("precision", "fp8_delayed")),
        message="moe_act or layernorm is recomputed under delayed FP8 scaling",
        nearest=without(MODULES, "moe_act", "layernorm"),
        source="transformer_config.py:2004",
        breaking=example(
            precision="fp8_delayed", recompute_granularity="selective", recompute_modules=("layernorm", "mlp")
        ),
        passing=example(
            precision="fp8_current", recompute_granularity="selective", recompute_modules=("layernorm", "mlp")
        ),
    ),
    Rule(
        id="distributed-saved-activations",
        knobs=("distribute_saved_activations", "sequence_parallel"),
        broken=all_of(on("distribute_saved_activations"), any_of(on("sequence_parallel"), negated(_full))),
        message="distribute_saved_activations needs full recompute without sequence_parallel",
        nearest=fixed(distribute_saved_activations=False),
        source="transformer_config.py:1937",
        breaking=example(distribute_saved_activations=True),
        passing=example(
            distribute_saved_activations=True,
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
        ),
    ),
)
