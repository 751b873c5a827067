"""Rules of offload to host memory: optimizer state, whole layers, single activations."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.predicates import (
    above_one,
    all_of,
    among,
    any_of,
    has_graphs,
    lists,
    negated,
    off,
    on,
    on_gpu,
    quantized,
    recomputed,
)
from trainer.recipe.rules.graphs import NO_GRAPHS, whole_iteration
from trainer.recipe.rules.rule import LM_AND_BRIDGE, MEGATRON_LM, FindingKind, Rule, Suggestion, example, fixed, without
from trainer.recipe.settings import Settings

LAYERS = "cpu_offloading_num_layers"
MODULES = "offload_modules"
FINE = "fine_grained_activation_offloading"
NO_RECOMPUTE = fixed(
    recompute_granularity=None, recompute_modules=None, recompute_method=None, recompute_num_layers=None
)
_local_graphs = all_of(among("cuda_graph_impl", "local"), negated(lists("cuda_graph_scope", "full_iteration")))
OUTSIDE_EXPERTS = ("core_attn", "attn_proj", "attn_norm", "mlp_norm", "qkv_linear")
_OFFLOAD_GRAPHS: dict[str, Any] = {
    "fine_grained_activation_offloading": True,
    "NVTE_CPU_OFFLOAD_V1": 1,
    "cuda_graph_impl": "transformer_engine",
    "cuda_graph_scope": ("attn",),
    "use_te_rng_tracker": True,
}


def _with_attention(recipe: Settings) -> Suggestion:
    return {MODULES: (*recipe.knob(MODULES), "core_attn")}


ROWS = (
    Rule(
        id="optimizer-offload-aware",
        binds=MEGATRON_LM,
        knobs=("optimizer_cpu_offload", "use_precision_aware_optimizer"),
        broken=all_of(on("optimizer_cpu_offload"), on_gpu, off("use_precision_aware_optimizer")),
        message="optimizer_cpu_offload without use_precision_aware_optimizer",
        nearest=fixed(use_precision_aware_optimizer=True),
        source="megatron/training/arguments.py:1886",
        breaking=example(optimizer_cpu_offload=True, optimizer_offload_fraction=0.5),
        passing=example(optimizer_cpu_offload=True, optimizer_offload_fraction=0.5, use_precision_aware_optimizer=True),
    ),
    Rule(
        id="optimizer-offload-fp8-params",
        binds=MEGATRON_LM,
        knobs=("optimizer_cpu_offload", "fp8_param_gather"),
        broken=all_of(
            on("optimizer_cpu_offload"),
            on("fp8_param_gather"),
            quantized,
            negated(among("precision", "fp8_delayed")),
        ),
        message="optimizer_cpu_offload with fp8_param_gather in {precision}",
        nearest=fixed(fp8_param_gather=False, reuse_grad_buf_for_mxfp8_param_ag=False),
        source="megatron/training/arguments.py:1889",
        breaking=example(
            optimizer_cpu_offload=True,
            use_precision_aware_optimizer=True,
            fp8_param_gather=True,
            precision="fp8_current",
        ),
        passing=example(optimizer_cpu_offload=True, use_precision_aware_optimizer=True, precision="fp8_current"),
    ),
    Rule(
        id="layer-offload-pipeline",
        knobs=("cpu_offloading", "pipeline_model_parallel_size"),
        broken=all_of(on("cpu_offloading"), above_one("pipeline_model_parallel_size")),
        message="offload of whole layers over PP {pp}",
        nearest=fixed(cpu_offloading=False),
        source="transformer_config.py:1893",
        breaking=example(cpu_offloading=True, cpu_offloading_num_layers=2, pipeline_model_parallel_size=2),
        passing=example(cpu_offloading=True, cpu_offloading_num_layers=2),
    ),
    Rule(
        id="layer-offload-recompute",
        knobs=("cpu_offloading", "recompute_granularity"),
        broken=all_of(on("cpu_offloading"), on("recompute_granularity")),
        message="offload of whole layers together with recompute_granularity {recompute_granularity}",
        nearest=NO_RECOMPUTE,
        source="transformer_config.py:1898",
        breaking=example(cpu_offloading=True, cpu_offloading_num_layers=2, recompute_granularity="selective"),
        passing=example(cpu_offloading=True, cpu_offloading_num_layers=2),
    ),
    Rule(
        id="layer-offload-nothing",
        kind=FindingKind.WARNING,
        knobs=("cpu_offloading", LAYERS),
        broken=all_of(on("cpu_offloading"), among(LAYERS, 0)),
        message="cpu_offloading with cpu_offloading_num_layers 0: no layer is moved to the host",
        nearest=fixed(cpu_offloading=False),
        source="transformer_config.py:1888; Megatron-LM's command line switches it on by the number alone",
        breaking=example(cpu_offloading=True),
    ),
    Rule(
        id="layer-offload-count",
        knobs=(LAYERS,),
        broken=all_of(on("cpu_offloading"), lambda recipe: recipe.knob(LAYERS) >= recipe.architecture.num_layers),
        message="cpu_offloading_num_layers {cpu_offloading_num_layers} of {num_layers}: one layer at least stays",
        nearest=lambda recipe: {LAYERS: recipe.architecture.num_layers - 1},
        source="transformer_config.py:1888",
        breaking=example(cpu_offloading=True, cpu_offloading_num_layers=8),
        passing=example(cpu_offloading=True, cpu_offloading_num_layers=7),
    ),
    Rule(
        id="layer-offload-graphs",
        knobs=("cpu_offloading", "cuda_graph_impl"),
        broken=all_of(on("cpu_offloading"), has_graphs, negated(whole_iteration)),
        message="offload of whole layers with CUDA graphs of layers",
        nearest=NO_GRAPHS,
        source="transformer_config.py:2801",
        breaking=example(
            cpu_offloading=True,
            cpu_offloading_num_layers=2,
            cuda_graph_impl="local",
            cuda_graph_scope=("attn",),
            use_te_rng_tracker=True,
        ),
        passing=example(cpu_offloading=True, cpu_offloading_num_layers=2),
    ),
    Rule(
        id="layer-offload-iteration",
        kind=FindingKind.WARNING,
        knobs=("cpu_offloading", "cuda_graph_impl"),
        broken=all_of(on("cpu_offloading"), whole_iteration),
        message="offload of whole layers inside a graph of the whole iteration: Megatron-Core before 0.18 refuses it",
        nearest=NO_GRAPHS,
        source="megatron-core 0.16.1 transformer_config.py:1720; loosened in 0.18.0",
        versions=SpecifierSet(">=0.16,<0.18"),
        breaking=example(
            cpu_offloading=True,
            cpu_offloading_num_layers=2,
            cuda_graph_impl="local",
            cuda_graph_scope=("full_iteration",),
            use_te_rng_tracker=True,
        ),
        passing=example(cpu_offloading=True, cpu_offloading_num_layers=2),
    ),
    Rule(
        id="fine-offload-layers",
        knobs=(FINE, "cpu_offloading"),
        broken=all_of(on(FINE), on("cpu_offloading")),
        message="fine-grained offload together with offload of whole layers",
        nearest=fixed(cpu_offloading=False),
        source="transformer_config.py:2130",
        breaking=example(
            fine_grained_activation_offloading=True,
            offload_modules=("moe_act",),
            cpu_offloading=True,
            NVTE_CPU_OFFLOAD_V1=1,
        ),
        passing=example(fine_grained_activation_offloading=True, offload_modules=("moe_act",), NVTE_CPU_OFFLOAD_V1=1),
    ),
    Rule(
        id="fine-offload-modules",
        knobs=(FINE, MODULES),
        broken=all_of(on(FINE), off(MODULES)),
        message="fine-grained offload without offload_modules",
        nearest=fixed(offload_modules=("moe_act",)),
        source="transformer_config.py:2145",
        breaking=example(fine_grained_activation_offloading=True, NVTE_CPU_OFFLOAD_V1=1),
        passing=example(fine_grained_activation_offloading=True, offload_modules=("core_attn",), NVTE_CPU_OFFLOAD_V1=1),
    ),
    Rule(
        id="offload-attn-proj",
        knobs=(MODULES,),
        broken=all_of(on(FINE), lists(MODULES, "attn_proj"), negated(lists(MODULES, "core_attn"))),
        message="attn_proj is offloaded without core_attn, whose output is its input",
        nearest=_with_attention,
        source="transformer_config.py:2150",
        breaking=example(
            fine_grained_activation_offloading=True, offload_modules=("attn_proj",), NVTE_CPU_OFFLOAD_V1=1
        ),
        passing=example(
            fine_grained_activation_offloading=True, offload_modules=("core_attn", "attn_proj"), NVTE_CPU_OFFLOAD_V1=1
        ),
    ),
    Rule(
        id="offload-inside-recompute",
        knobs=(MODULES, "recompute_modules"),
        broken=all_of(on(FINE), lists(MODULES, "moe_act", "expert_fc1", "fused_group_mlp"), recomputed("moe")),
        message="activations inside moe are offloaded although the whole moe is recomputed",
        nearest=without("recompute_modules", "moe"),
        source="transformer_config.py:2170",
        versions=SpecifierSet(">=0.19"),
        versions_note="before, nothing refuses it",
        breaking=example(
            fine_grained_activation_offloading=True,
            offload_modules=("expert_fc1",),
            recompute_granularity="selective",
            recompute_modules=("moe", "layernorm"),
            NVTE_CPU_OFFLOAD_V1=1,
        ),
        passing=example(
            fine_grained_activation_offloading=True,
            offload_modules=("expert_fc1",),
            recompute_granularity="selective",
            recompute_modules=("layernorm",),
            NVTE_CPU_OFFLOAD_V1=1,
        ),
    ),
    Rule(
        id="fine-offload-environment",
        binds=LM_AND_BRIDGE,
        refuses=LM_AND_BRIDGE,
        kind=FindingKind.WARNING,
        knobs=(FINE, "NVTE_CPU_OFFLOAD_V1"),
        broken=all_of(on(FINE), negated(among("NVTE_CPU_OFFLOAD_V1", 1))),
        message="fine-grained offload without NVTE_CPU_OFFLOAD_V1=1: refused with Transformer Engine 2.10 and later",
        nearest=fixed(NVTE_CPU_OFFLOAD_V1=1),
        source="megatron/training/arguments.py:1940; src/megatron/bridge/training/config.py:2214",
        breaking=example(fine_grained_activation_offloading=True, offload_modules=("moe_act",)),
        passing=example(fine_grained_activation_offloading=True, offload_modules=("moe_act",), NVTE_CPU_OFFLOAD_V1=1),
    ),
    Rule(
        id="fine-offload-graph-warmup",
        knobs=(FINE, "cuda_graph_warmup_steps"),
        broken=all_of(on(FINE), has_graphs, among("cuda_graph_warmup_steps", 0)),
        message="fine-grained offload with graphs captured without a warm-up step",
        nearest=fixed(cuda_graph_warmup_steps=3),
        source="transformer_config.py:2964",
        versions=SpecifierSet(">=0.18"),
        breaking=example(cuda_graph_warmup_steps=0, offload_modules=("core_attn",), **_OFFLOAD_GRAPHS),
        passing=example(offload_modules=("core_attn",), **_OFFLOAD_GRAPHS),
    ),
    Rule(
        id="fine-offload-graph-moe",
        knobs=(FINE, "cuda_graph_scope"),
        broken=all_of(on(FINE), has_graphs, lists("cuda_graph_scope", "moe")),
        message="fine-grained offload with a graph of the whole moe",
        nearest=without("cuda_graph_scope", "moe"),
        source="transformer_config.py:2962",
        versions=SpecifierSet(">=0.18"),
        breaking=example(
            offload_modules=("core_attn",),
            moe_expert_capacity_factor=1.0,
            moe_pad_expert_input_to_capacity=True,
            **_OFFLOAD_GRAPHS | {"cuda_graph_scope": ("attn", "moe")},
        ),
        passing=example(offload_modules=("core_attn",), **_OFFLOAD_GRAPHS),
    ),
    Rule(
        id="fine-offload-local-graphs",
        knobs=(FINE, MODULES, "cuda_graph_impl", "cuda_graph_scope"),
        broken=all_of(
            on(FINE),
            _local_graphs,
            any_of(lists(MODULES, *OUTSIDE_EXPERTS), off("cuda_graph_scope")),
        ),
        message="local graphs with {offload_modules} offloaded: they allow activations of the experts only, and parts "
        "of a layer only",
        nearest=NO_GRAPHS,
        source="transformer_config.py:2936",
        versions=SpecifierSet(">=0.18"),
        breaking=example(offload_modules=("core_attn",), **_OFFLOAD_GRAPHS | {"cuda_graph_impl": "local"}),
        passing=example(offload_modules=("moe_act",), **_OFFLOAD_GRAPHS | {"cuda_graph_impl": "local"}),
    ),
    Rule(
        id="fine-offload-local-release",
        kind=FindingKind.WARNING,
        knobs=(FINE, MODULES, "cuda_graph_impl"),
        broken=all_of(
            on(FINE), among("cuda_graph_impl", "local"), negated(lists("cuda_graph_scope", "full_iteration"))
        ),
        message="fine-grained offload with local graphs of layers: Megatron-Core 0.18 refuses it whatever is offloaded",
        nearest=fixed(cuda_graph_impl="transformer_engine"),
        source="megatron-core 0.18.0 transformer_config.py:2352; 0.19.0 takes the experts' activations",
        versions=SpecifierSet(">=0.18,<0.19"),
        breaking=example(offload_modules=("moe_act",), **_OFFLOAD_GRAPHS | {"cuda_graph_impl": "local"}),
        passing=example(offload_modules=("moe_act",), **_OFFLOAD_GRAPHS),
    ),
)
