"""Rules of selective recompute: the modules must exist in the model, and suit its overlap, graphs and number format."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.predicates import (
    all_of,
    among,
    has_dense_layers,
    has_shared_experts,
    is_delta_net,
    is_mla,
    is_moe,
    lists,
    negated,
    off,
    on,
    on_gpu,
    recomputed,
)
from trainer.recipe.rules.examples import DELTA_NET, DENSE
from trainer.recipe.rules.rule import FindingKind, Rule, Suggestion, example, fixed, without
from trainer.recipe.settings import Settings

GRANULARITY = "recompute_granularity"
MODULES = "recompute_modules"
_selective = among(GRANULARITY, "selective")
_GRAPHED: dict[str, Any] = {
    "recompute_granularity": "selective",
    "recompute_modules": ("layernorm",),
    "cuda_graph_impl": "transformer_engine",
    "cuda_graph_scope": ("attn", "moe_router"),
    "use_te_rng_tracker": True,
}


def _grouped(recipe: Settings) -> Suggestion:
    """Returns grouped GEMM, or other recompute modules on a CPU in fp32, which has none."""
    if recipe.hardware.is_cpu and recipe.training.precision == "fp32":
        return without(MODULES, "moe_act")(recipe)
    return {"moe_grouped_gemm": True}


ROWS = (
    Rule(
        id="modules-without-selective",
        kind=FindingKind.WARNING,
        knobs=(GRANULARITY, MODULES),
        broken=all_of(on(MODULES), negated(_selective)),
        message="recompute_modules {recompute_modules} do nothing: recompute_granularity is {recompute_granularity}",
        nearest=fixed(recompute_granularity="selective", recompute_method=None, recompute_num_layers=None),
        source="transformer_config.py: read only when selective; four published recipes set them without effect",
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
        broken=all_of(recomputed("mla_up_proj"), negated(is_mla)),
        message="mla_up_proj is recomputed in a model without multi-latent attention",
        nearest=without(MODULES, "mla_up_proj"),
        source="transformer_config.py:1971",
        breaking=example(recompute_granularity="selective", recompute_modules=("mla_up_proj", "layernorm")),
        passing=example(recompute_granularity="selective", recompute_modules=("layernorm",)),
    ),
    Rule(
        id="delta-norm-recompute",
        knobs=(MODULES,),
        broken=all_of(recomputed("gdn_norm_out"), negated(is_delta_net)),
        message="gdn_norm_out is recomputed in a model without gated delta nets",
        nearest=without(MODULES, "gdn_norm_out"),
        source="megatron-core 0.19.2 transformer_config.py:1796",
        versions=SpecifierSet(">=0.19"),
        breaking=example(recompute_granularity="selective", recompute_modules=("gdn_norm_out", "layernorm")),
    ),
    Rule(
        id="delta-norm-recompute-release",
        kind=FindingKind.WARNING,
        knobs=(MODULES,),
        broken=recomputed("gdn_norm_out"),
        message="gdn_norm_out is recomputed: Megatron-Core before 0.19 knows no such module and refuses it",
        nearest=without(MODULES, "gdn_norm_out"),
        source="megatron-core 0.18.2 transformer_config.py, allowed_modules; 0.19.2 has it",
        versions=SpecifierSet(">=0.15,<0.19"),
        breaking=example(
            recompute_granularity="selective", recompute_modules=("gdn_norm_out", "layernorm"), model=DELTA_NET
        ),
    ),
    Rule(
        id="streams-recompute",
        knobs=(MODULES,),
        broken=all_of(recomputed("mhc"), lambda recipe: not recipe.architecture.enable_hyper_connections),
        message="mhc is recomputed in a model without hyper connections",
        nearest=without(MODULES, "mhc"),
        source="transformer_config.py:2028 of main",
        versions=SpecifierSet(">=0.20"),
        versions_note="no release has it: main of August 2026",
        breaking=example(recompute_granularity="selective", recompute_modules=("mhc", "layernorm")),
    ),
    Rule(
        id="streams-recompute-release",
        kind=FindingKind.WARNING,
        knobs=(MODULES,),
        broken=recomputed("mhc"),
        message="mhc is recomputed: no release of Megatron-Core up to 0.19 knows such a module, and all refuse it",
        nearest=without(MODULES, "mhc"),
        source="megatron-core 0.19.2 transformer_config.py:1768; main has it",
        versions=SpecifierSet(">=0.15,<0.20"),
        breaking=example(
            recompute_granularity="selective",
            recompute_modules=("mhc", "layernorm"),
            model={"enable_hyper_connections": True},
        ),
    ),
    Rule(
        id="moe-modules-need-experts",
        kind=FindingKind.WARNING,
        knobs=(MODULES,),
        broken=all_of(recomputed("moe", "moe_act", "shared_experts"), negated(is_moe)),
        message="recompute_modules {recompute_modules} name experts, and the model has none: there they do nothing",
        nearest=without(MODULES, "moe", "moe_act", "shared_experts"),
        source="megatron/core/transformer/moe/moe_layer.py reads them",
        breaking=example(
            model=DENSE,
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
        source="megatron/core/transformer/transformer_layer.py: recompute_mlp acts on MLP that is not an MoE layer",
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
        id="modules-default",
        kind=FindingKind.AUTOSET,
        knobs=(GRANULARITY, MODULES),
        broken=all_of(_selective, among(MODULES, None)),
        message="selective recompute without recompute_modules: Megatron-Core sets them to core_attn",
        nearest=fixed(recompute_modules=("core_attn",)),
        source="transformer_config.py:1941",
        breaking=example(recompute_granularity="selective"),
        passing=example(recompute_granularity="selective", recompute_modules=("layernorm",)),
    ),
    Rule(
        id="core-attention-fused",
        kind=FindingKind.WARNING,
        knobs=(MODULES,),
        broken=all_of(recomputed("core_attn"), on_gpu, negated(among("attention_backend", "unfused", "local"))),
        message="core_attn is recomputed: fused attention keeps no scores, so this costs time and saves little",
        nearest=lambda recipe: {MODULES: tuple(set(recipe.knob(MODULES) or ()) - {"core_attn"})},
        source="transformer_config.py:1986",
        breaking=example(recompute_granularity="selective", recompute_modules=("core_attn",)),
        passing=example(recompute_granularity="selective", recompute_modules=("layernorm",)),
    ),
    Rule(
        id="layernorm-graphed",
        kind=FindingKind.FALLBACK,
        knobs=(MODULES, "cuda_graph_scope", "moe_shared_expert_overlap"),
        broken=all_of(
            recomputed("layernorm"),
            is_moe,
            among("cuda_graph_impl", "transformer_engine"),
            lists("cuda_graph_scope", "moe_router"),
            has_shared_experts,
            on("moe_shared_expert_overlap"),
        ),
        message="layernorm is recomputed around a graph of moe_router with shared experts overlapped: the norm before "
        "the experts is kept instead, only the other one is recomputed",
        nearest=fixed(moe_shared_expert_overlap=False),
        source="megatron/core/transformer/transformer_layer.py:499; 0.16.1 :401",
        breaking=example(moe_shared_expert_overlap=True, **_GRAPHED),
        passing=example(**_GRAPHED),
    ),
)
