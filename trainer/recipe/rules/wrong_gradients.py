"""Rules of gradients, weights and activations that a release computes wrongly without an error, by reports in the issue
trackers."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import (
    above_one,
    all_of,
    among,
    any_of,
    fp8,
    has_graphs,
    interleaved,
    is_moe,
    lists,
    negated,
    off,
    on,
    on_gpu,
)
from trainer.recipe.rules.examples import FUSED, PIPELINE
from trainer.recipe.rules.graphs import graphs, whole_iteration
from trainer.recipe.rules.nearest import EP
from trainer.recipe.rules.overlap import ep_overlap
from trainer.recipe.rules.rule import Effect, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings

FSDP = "use_megatron_fsdp"
IMPL = "cuda_graph_impl"
RECORD = "TORCH_NCCL_AVOID_RECORD_STREAMS"
OFFLOAD = "optimizer_cpu_offload"
PARAM_GATHER = "fp8_param_gather"
REUSE = "reuse_grad_buf_for_mxfp8_param_ag"
INSTANCES = "num_distributed_optimizer_instances"
SHARDING = "data_parallel_sharding_strategy"
_local_layers = all_of(among(IMPL, "local"), negated(whole_iteration))
_MXFP8: dict[str, Any] = {"cluster": {"gpu": "b200"}, "precision": "mxfp8", PARAM_GATHER: True, REUSE: True}


def _lone_group(recipe: Settings) -> bool:
    """Returns True if a data parallel group, of dense or of expert weights, has size 1."""
    now = layout_of(recipe)
    return now.dp * now.cp == 1 or (recipe.architecture.num_moe_experts is not None and now.edp == 1)


def _has_biases(recipe: Settings) -> bool:
    return recipe.architecture.add_bias_linear


def _accumulates(recipe: Settings) -> bool:
    return recipe.training.global_batch_size > recipe.training.micro_batch_size * layout_of(recipe).dp


ROWS = (
    Rule(
        id="mxfp8-params-without-overlap",
        kind=FindingKind.WARNING,
        effect=Effect.TRAINS_WRONGLY,
        knobs=(PARAM_GATHER, REUSE, "overlap_param_gather", "overlap_grad_reduce"),
        broken=all_of(
            on(PARAM_GATHER),
            on(REUSE),
            among("precision", "mxfp8"),
            off(FSDP),
            any_of(off("overlap_param_gather"), off("overlap_grad_reduce")),
        ),
        message="MXFP8 parameters gathered into the gradient buffer without the overlap of data parallel: the loss "
        "turns NaN in Megatron-Core before 0.18, and nothing refuses it",
        nearest=fixed(overlap_param_gather=True, overlap_grad_reduce=True),
        source="Megatron-LM#2272, Megatron-Bridge#3801; fixed in Megatron-LM#4800; the parser of 0.16.1 has no check",
        versions=SpecifierSet(">=0.15,<0.18"),
        breaking=example(**_MXFP8),
        passing=example(**_MXFP8, overlap_param_gather=True),
    ),
    Rule(
        id="instances-reduce-early",
        kind=FindingKind.WARNING,
        effect=Effect.TRAINS_WRONGLY,
        knobs=(INSTANCES, "overlap_grad_reduce"),
        broken=all_of(above_one(INSTANCES), on("overlap_grad_reduce"), on_gpu),
        message="{num_distributed_optimizer_instances} optimizer instances with overlap_grad_reduce: Megatron-Core "
        "before 0.17 may reduce gradients before they are complete",
        nearest=fixed(overlap_grad_reduce=False),
        source="Megatron-LM#3670, fixed in Megatron-LM#3693; megatron-core 0.16.1 "
        "distributed/param_and_grad_buffer.py waits for the default stream",
        versions=SpecifierSet(">=0.15,<0.17"),
        breaking=example(num_distributed_optimizer_instances=2),
        passing=example(num_distributed_optimizer_instances=2, overlap_grad_reduce=False),
    ),
    Rule(
        id="local-graphs-expert-state",
        kind=FindingKind.WARNING,
        effect=Effect.TRAINS_WRONGLY,
        knobs=(IMPL,),
        broken=all_of(_local_layers, is_moe),
        message="local graphs of layers in a model with experts: Megatron-Core before 0.18 reuses the first layer's "
        "input too early and lets the warm-up change the expert bias; loss curves differ",
        nearest=fixed(cuda_graph_impl="transformer_engine"),
        source="Megatron-LM#4433",
        versions=SpecifierSet(">=0.16,<0.18"),
        breaking=example(**graphs(cuda_graph_impl="local")),
        passing=example(**graphs()),
    ),
    Rule(
        id="local-graphs-memory",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=(IMPL,),
        broken=_local_layers,
        message="local graphs of layers: Megatron-Core before 0.19 may free what their backward pass still reads",
        nearest=fixed(cuda_graph_impl="transformer_engine"),
        source="Megatron-LM#5975",
        versions=SpecifierSet(">=0.16,<0.19"),
        breaking=example(**graphs(cuda_graph_impl="local")),
        passing=example(**graphs()),
    ),
    Rule(
        id="local-graphs-hybridep",
        kind=FindingKind.WARNING,
        effect=Effect.TRAINS_WRONGLY,
        knobs=(IMPL, "cuda_graph_scope", "moe_flex_dispatcher_backend"),
        broken=all_of(
            _local_layers,
            lists("cuda_graph_scope", "moe_router"),
            among("moe_token_dispatcher_type", "flex"),
            among("moe_flex_dispatcher_backend", "hybridep"),
        ),
        message="local graphs of moe_router with HybridEP: Megatron-Core before 0.18 does not reduce the router's "
        "gradient over data parallel ranks",
        nearest=fixed(cuda_graph_impl="transformer_engine"),
        source="Megatron-LM#4500",
        versions=SpecifierSet(">=0.16,<0.18"),
        breaking=example(
            **graphs(
                cuda_graph_impl="local",
                cuda_graph_scope=("moe_router", "moe_preprocess"),
                moe_token_dispatcher_type="flex",
                moe_flex_dispatcher_backend="hybridep",
            )
        ),
        passing=example(
            **graphs(
                cuda_graph_scope=("moe_router", "moe_preprocess"),
                moe_token_dispatcher_type="flex",
                moe_flex_dispatcher_backend="hybridep",
            )
        ),
    ),
    Rule(
        id="ep-overlap-graph-warmup",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=("cuda_graph_warmup_steps", "overlap_moe_expert_parallel_comm"),
        broken=all_of(ep_overlap, has_graphs, negated(whole_iteration), among("cuda_graph_warmup_steps", 0)),
        message="graphs of layers captured without a warm-up step under EP communication overlap: they are captured "
        "wrongly, and nothing refuses it",
        nearest=fixed(cuda_graph_warmup_steps=1),
        source="Megatron-LM#4490, closed without a check in the main branch",
        breaking=example(**graphs(cuda_graph_warmup_steps=0, overlap_moe_expert_parallel_comm=True)),
        passing=example(**graphs(overlap_moe_expert_parallel_comm=True)),
    ),
    Rule(
        id="fused-experts-bias",
        kind=FindingKind.WARNING,
        effect=Effect.TRAINS_WRONGLY,
        knobs=("use_transformer_engine_op_fuser",),
        broken=all_of(is_moe, on("use_transformer_engine_op_fuser"), on("moe_grouped_gemm"), _has_biases),
        message="fused experts with biases: Megatron-Core before 0.19 adds the second bias without the router's weight",
        nearest=fixed(use_transformer_engine_op_fuser=False),
        source="Megatron-LM#5850",
        versions=SpecifierSet(">=0.18,<0.19"),
        versions_note="older ones do not fuse experts",
        breaking=example(
            model={"add_bias_linear": True, "moe_shared_expert_intermediate_size": None},
            **FUSED,
        ),
        passing=example(**FUSED),
    ),
    Rule(
        id="fsdp-double-buffer-race",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=(FSDP, "fsdp_double_buffer"),
        broken=all_of(on(FSDP), on("fsdp_double_buffer")),
        message="Megatron FSDP with fsdp_double_buffer: in Megatron-Core 0.18 a layer's weight gradient may overwrite "
        "the one that is still being reduced",
        hint="train with Megatron-Core 0.19, or without fsdp_double_buffer",
        source="Megatron-LM#5222, brought by Megatron-LM#4054",
        versions=SpecifierSet(">=0.18,<0.19"),
        breaking=example(use_megatron_fsdp=True, fsdp_double_buffer=True),
        passing=example(use_megatron_fsdp=True),
    ),
    Rule(
        id="fsdp-lone-group",
        kind=FindingKind.WARNING,
        effect=Effect.TRAINS_WRONGLY,
        knobs=(FSDP, SHARDING, EP),
        broken=all_of(on(FSDP), among(SHARDING, "optim_grads_params"), _lone_group, _accumulates),
        message="Megatron FSDP shards gradients of a data parallel group of one rank (EDP 1 or DP 1): they double with "
        "every micro batch",
        nearest=fixed(data_parallel_sharding_strategy="optim"),
        source="Megatron-LM#6660, fixed in Megatron-LM#6773 after 0.19",
        versions_note="reported of the main branch of August 2026; releases were not checked",
        breaking=example(
            use_megatron_fsdp=True,
            data_parallel_sharding_strategy="optim_grads_params",
            expert_model_parallel_size=16,
        ),
        passing=example(use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads_params"),
    ),
    Rule(
        id="fsdp-gradient-scale",
        kind=FindingKind.WARNING,
        effect=Effect.TRAINS_WRONGLY,
        knobs=(FSDP, SHARDING),
        broken=all_of(
            on(FSDP), among(SHARDING, "optim_grads", "optim_grads_params"), off("average_in_collective"), _accumulates
        ),
        message="Megatron FSDP with sharded gradients: Megatron-Core before 0.16 scales the accumulated gradient again "
        "with every micro batch, not the new one",
        nearest=fixed(average_in_collective=True),
        source="Megatron-LM#3023",
        versions=SpecifierSet(">=0.15,<0.16"),
        breaking=example(use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads"),
        passing=example(use_megatron_fsdp=True, data_parallel_sharding_strategy="optim"),
    ),
    Rule(
        id="interleaved-send-freed",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=(RECORD, "overlap_p2p_comm"),
        broken=all_of(interleaved, on("overlap_p2p_comm"), on(RECORD)),
        message="VPP {vpp} with overlap_p2p_comm and TORCH_NCCL_AVOID_RECORD_STREAMS: Megatron-Core before 0.18 frees "
        "an output that is still being sent, and the next stage may read something else",
        nearest=fixed(TORCH_NCCL_AVOID_RECORD_STREAMS=0),
        source="Megatron-LM#1586, Megatron-LM#4047",
        versions=SpecifierSet(">=0.15,<0.18"),
        breaking=example(**PIPELINE, TORCH_NCCL_AVOID_RECORD_STREAMS=1),
        passing=example(**PIPELINE),
    ),
    Rule(
        id="optimizer-offload-loaded",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=(OFFLOAD, "use_distributed_optimizer"),
        broken=all_of(on(OFFLOAD), on("use_distributed_optimizer"), on_gpu, negated(fp8)),
        message="optimizer_cpu_offload: where the weights come from a checkpoint without optimizer state, the first "
        "step puts the random ones back, and nothing says so",
        hint="load the optimizer's state with the weights, or check the loss of the second step",
        source="Megatron-LM#5071 (open), Megatron-Bridge#4082, which works around it",
        versions_note="training from scratch, and resuming with the optimizer's state, are not concerned",
        breaking=example(optimizer_cpu_offload=True, use_precision_aware_optimizer=True),
        passing=example(use_precision_aware_optimizer=True),
    ),
    Rule(
        id="te-cross-entropy-gradient",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=("cross_entropy_loss_fusion", "cross_entropy_fusion_impl"),
        broken=all_of(on("cross_entropy_loss_fusion"), among("cross_entropy_fusion_impl", "te"), on_gpu),
        message="the te cross entropy: its gradient is wrong with Transformer Engine 2.5 and older, and the loss "
        "diverges",
        nearest=fixed(cross_entropy_fusion_impl="native"),
        source="Megatron-LM#1627, Megatron-LM#1750, fixed in TransformerEngine#2139",
        versions_note="a matter of Transformer Engine; Megatron-LM refuses it since 0.18.2",
        breaking=example(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="te"),
        passing=example(cross_entropy_loss_fusion=True),
    ),
)
