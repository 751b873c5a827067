"""Rules of recipes that a release starts and that hang, crash or diverge later, by reports in the issue trackers."""

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layer_counts_of_ranks, layout_of
from trainer.recipe.predicates import (
    above_one,
    all_of,
    among,
    has_graphs,
    has_mtp,
    is_delta_net,
    is_moe,
    lists,
    negated,
    off,
    on,
    quantized,
)
from trainer.recipe.rules.examples import FULL, PIPELINE
from trainer.recipe.rules.graphs import graphs
from trainer.recipe.rules.nearest import CP, PP, TP
from trainer.recipe.rules.overlap import ep_overlap
from trainer.recipe.rules.rule import BRIDGE, MEGATRON_LM, Effect, FindingKind, Rule, example, fixed, without
from trainer.recipe.settings import Settings

OFFLOAD = "optimizer_cpu_offload"
AWARE = "use_precision_aware_optimizer"


def _dense_stage(recipe: Settings) -> bool:
    """Returns True if a pipeline stage has no MoE layer; False without a pipeline and with interleaving, where a rank's
    chunks are spread over the model."""
    now = layout_of(recipe)
    if now.pp == 1 or now.vpp > 1:
        return False
    moe, done = recipe.architecture.moe_layers, 0
    for layers in layer_counts_of_ranks(recipe):
        if not any(moe[done : done + layers]):
            return True
        done += layers
    return False


def _gate_is_cut(recipe: Settings) -> bool:
    model = recipe.architecture
    return model.attention_output_gate and (model.num_query_groups or model.num_attention_heads) < layout_of(recipe).tp


ROWS = (
    Rule(
        id="mtp-dense-stage",
        kind=FindingKind.WARNING,
        effect=Effect.FAILS,
        knobs=(PP,),
        broken=all_of(is_moe, has_mtp, _dense_stage, negated(among("moe_router_load_balancing_type", "none"))),
        message="MTP with a pipeline stage of dense layers alone: Megatron-Core before 0.17 hangs when it first logs "
        "the balancing loss",
        nearest=fixed(moe_router_load_balancing_type="none"),
        source="Megatron-LM#3401",
        versions=SpecifierSet(">=0.15,<0.17"),
        breaking=example(
            model={"mtp_num_layers": 1, "moe_layer_freq": (0, 0, 1, 1, 1, 1, 1, 1)},
            pipeline_model_parallel_size=4,
            expert_model_parallel_size=4,
        ),
        passing=example(model={"mtp_num_layers": 1}, pipeline_model_parallel_size=2),
    ),
    Rule(
        id="mtp-recomputed-whole",
        kind=FindingKind.WARNING,
        effect=Effect.FAILS,
        knobs=("recompute_granularity",),
        broken=all_of(has_mtp, among("recompute_granularity", "full")),
        message="full recompute of a model with MTP: Megatron-Core 0.18 ends at the first forward with a TypeError "
        "(_checkpointed_forward, padding_mask)",
        hint="train on Megatron-Core 0.17 or 0.19, or recompute selectively",
        source="Megatron-LM#4933 (open), Megatron-LM#6367; seen in 0.18.0 and 0.18.2",
        versions=SpecifierSet(">=0.18,<0.19"),
        breaking=example(model={"mtp_num_layers": 1}, **FULL),
        passing=example(model={"mtp_num_layers": 1}),
    ),
    Rule(
        id="mtp-repeated-layer",
        kind=FindingKind.WARNING,
        knobs=(),
        broken=all_of(has_mtp, lambda recipe: recipe.architecture.mtp_use_repeated_layer),
        message="mtp_use_repeated_layer: Megatron-Core 0.16 has no such setting",
        hint="train on Megatron-Core 0.17 or later, or remove model.mtp_use_repeated_layer",
        source="transformer_config.py:68 of 0.17.1; 0.16.1 has no such field",
        versions=SpecifierSet(">=0.15,<0.17"),
        breaking=example(model={"mtp_num_layers": 2, "mtp_use_repeated_layer": True}),
        passing=example(model={"mtp_num_layers": 2}),
    ),
    Rule(
        id="offload-graph-preprocess",
        kind=FindingKind.WARNING,
        effect=Effect.FAILS,
        knobs=("offload_modules", "cuda_graph_scope"),
        broken=all_of(
            is_moe,
            on("fine_grained_activation_offloading"),
            lists("offload_modules", "expert_fc1"),
            has_graphs,
            lists("cuda_graph_scope", "moe_preprocess"),
            among("moe_token_dispatcher_type", "alltoall"),
        ),
        message="expert_fc1 is offloaded beside graphs of moe_preprocess with dispatcher alltoall: reported to crash "
        "in the first step",
        nearest=without("offload_modules", "expert_fc1"),
        source="Megatron-LM#7009 (open)",
        versions=SpecifierSet(">=0.19"),
        versions_note="reported of 0.19.0; earlier releases were not checked",
        breaking=example(
            **graphs(cuda_graph_scope=("attn", "moe_router", "moe_preprocess")),
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn", "expert_fc1"),
            NVTE_CPU_OFFLOAD_V1=1,
        ),
    ),
    Rule(
        id="mtp-empty-rank",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=(CP,),
        broken=all_of(has_mtp, above_one(CP)),
        message="MTP over CP {cp}: a rank with masked tokens only turns the loss NaN in Megatron-Core before 0.17",
        hint="train on data without long masked parts, or with Megatron-Core 0.17",
        source="Megatron-LM#3396, Megatron-LM#1764",
        versions=SpecifierSet(">=0.15,<0.17"),
        breaking=example(model={"mtp_num_layers": 1}, context_parallel_size=2),
        passing=example(model={"mtp_num_layers": 1}),
    ),
    Rule(
        id="gate-over-tp",
        kind=FindingKind.WARNING,
        effect=Effect.FAILS,
        knobs=(TP,),
        broken=_gate_is_cut,
        message="attention_output_gate with {num_query_groups} query groups over TP {tp}: Megatron-Core before 0.17 "
        "does not cut the gate, and the first forward pass fails",
        nearest=lambda recipe: {TP: recipe.architecture.num_query_groups or 1},
        source="Megatron-LM#3575, Megatron-LM#3529; megatron-core 0.16.1 transformer/attention.py:1200",
        versions=SpecifierSet(">=0.16,<0.17"),
        breaking=example(
            model={"attention_output_gate": True, "num_query_groups": 2},
            tensor_model_parallel_size=4,
            sequence_parallel=True,
            expert_tensor_parallel_size=1,
        ),
        passing=example(
            model={"attention_output_gate": True, "num_query_groups": 2},
            tensor_model_parallel_size=2,
            sequence_parallel=True,
            expert_tensor_parallel_size=1,
        ),
    ),
    Rule(
        id="delta-net-cp-argument",
        binds=MEGATRON_LM,
        kind=FindingKind.WARNING,
        effect=Effect.FAILS,
        knobs=(CP, "cp_comm_type"),
        broken=all_of(is_delta_net, above_one(CP)),
        message="a gated delta net over CP {cp}: Megatron-LM 0.18 always passes it a cp_comm_type, which it does not "
        "take",
        nearest=fixed(context_parallel_size=1),
        source="Megatron-LM#4374; megatron-core 0.18.2 ssm/gated_delta_net.py; 0.19.0 gated_delta_net/common.py:122 "
        "takes it",
        versions=SpecifierSet(">=0.18,<0.19"),
        breaking=example(
            model={"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": 4},
            context_parallel_size=2,
        ),
        passing=example(model={"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": 4}),
    ),
    Rule(
        id="optimizer-offload-fp8-bridge",
        binds=BRIDGE,
        refuses=BRIDGE,
        kind=FindingKind.WARNING,
        effect=Effect.FAILS,
        knobs=(OFFLOAD, "fp8_param_gather", AWARE),
        broken=all_of(on(OFFLOAD), on("fp8_param_gather"), on(AWARE), quantized, off("use_megatron_fsdp")),
        message="optimizer_cpu_offload with parameters kept in {precision}: the optimizer fails when it is built, and "
        "Megatron-Bridge does not check it",
        nearest=fixed(fp8_param_gather=False, reuse_grad_buf_for_mxfp8_param_ag=False),
        source="Megatron-LM#5083 (open)",
        versions_note="reported of the main branch of 2026",
        breaking=example(
            optimizer_cpu_offload=True,
            use_precision_aware_optimizer=True,
            fp8_param_gather=True,
            precision="fp8_delayed",
        ),
        passing=example(optimizer_cpu_offload=True, use_precision_aware_optimizer=True, precision="fp8_delayed"),
    ),
    Rule(
        id="ep-overlap-graph-divergence",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=("overlap_moe_expert_parallel_comm", "cuda_graph_scope"),
        broken=all_of(
            ep_overlap,
            has_graphs,
            among("cuda_graph_impl", "transformer_engine"),
            lists("cuda_graph_scope", "attn"),
            above_one(PP),
            above_one(TP),
        ),
        message="EP communication overlap with a graph of attn over TP {tp} and PP {pp}: one report of a gradient norm "
        "that explodes after 80 iterations and of NaN, gone without the graph",
        hint="compare the gradient norm of 100 iterations with and without the graph",
        source="Megatron-LM#5966 (open): Qwen3-235B-A22B, Megatron-Core 0.19 of July 2026, Transformer Engine 2.16",
        versions=SpecifierSet(">=0.19"),
        versions_note="older ones were not reported",
        breaking=example(
            **graphs(
                overlap_moe_expert_parallel_comm=True,
                tensor_model_parallel_size=2,
                sequence_parallel=True,
                expert_tensor_parallel_size=1,
                **PIPELINE,
            )
        ),
        passing=example(**graphs(overlap_moe_expert_parallel_comm=True)),
    ),
)
