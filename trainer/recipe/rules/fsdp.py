"""Rules of Megatron FSDP: incompatible knobs, and knobs that the frameworks change if it is on."""

from packaging.specifiers import SpecifierSet

from trainer.recipe.predicates import Test, all_of, among, has_graphs, interleaved, negated, off, on
from trainer.recipe.rules.overlap import ep_overlap, no_ep_overlap
from trainer.recipe.rules.rule import BRIDGE, LM_AND_BRIDGE, MEGATRON_LM, FindingKind, Rule, example, fixed

FSDP = "use_megatron_fsdp"
OVERLAP = "overlap_moe_expert_parallel_comm"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
DOUBLE = "fsdp_double_buffer"
REUSE = "reuse_grad_buf_for_mxfp8_param_ag"
_fsdp: Test = on(FSDP)
_overlapped: Test = all_of(ep_overlap, _fsdp)

ROWS = (
    Rule(
        id="fsdp-connections",
        binds=LM_AND_BRIDGE,
        knobs=("use_megatron_fsdp", CONNECTIONS),
        broken=all_of(on("use_megatron_fsdp"), among(CONNECTIONS, 1)),
        message="Megatron FSDP with one device connection",
        nearest=fixed(CUDA_DEVICE_MAX_CONNECTIONS=32),
        source="megatron/training/arguments.py:1167",
        breaking=example(use_megatron_fsdp=True, CUDA_DEVICE_MAX_CONNECTIONS=1),
        passing=example(use_megatron_fsdp=True, CUDA_DEVICE_MAX_CONNECTIONS=32),
    ),
    Rule(
        id="fsdp-interleaved-overlap",
        knobs=(OVERLAP, "use_megatron_fsdp"),
        broken=all_of(_overlapped, interleaved),
        message="EP communication overlap with Megatron FSDP and VPP {vpp}",
        nearest=no_ep_overlap,
        source="megatron/core/pipeline_parallel/combined_1f1b.py:211",
        breaking=example(
            overlap_moe_expert_parallel_comm=True,
            use_megatron_fsdp=True,
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
        ),
        passing=example(overlap_moe_expert_parallel_comm=True, use_megatron_fsdp=True),
    ),
    Rule(
        id="fsdp-overlap-double-buffer",
        knobs=(OVERLAP, FSDP, DOUBLE),
        broken=all_of(_overlapped, on(DOUBLE)),
        message="EP communication overlap with Megatron FSDP and fsdp_double_buffer",
        nearest=fixed(fsdp_double_buffer=False),
        source="megatron/core/distributed/fsdp/mcore_fsdp_adapter.py:179",
        versions=SpecifierSet(">=0.18"),
        versions_note="before, Megatron FSDP does not overlap EP communication",
        breaking=example(overlap_moe_expert_parallel_comm=True, use_megatron_fsdp=True, fsdp_double_buffer=True),
        passing=example(use_megatron_fsdp=True, fsdp_double_buffer=True),
    ),
    Rule(
        id="fsdp-overlap-graphs",
        knobs=(OVERLAP, FSDP, "cuda_graph_impl"),
        broken=all_of(_overlapped, has_graphs, negated(among("cuda_graph_impl", "full_iteration"))),
        message="EP communication overlap with Megatron FSDP and {cuda_graph_impl} graphs of layers",
        nearest=fixed(cuda_graph_impl="none"),
        source="megatron/core/distributed/fsdp/mcore_fsdp_adapter.py:183",
        versions=SpecifierSet(">=0.18"),
        versions_note="before, Megatron FSDP does not overlap EP communication",
        breaking=example(
            overlap_moe_expert_parallel_comm=True,
            use_megatron_fsdp=True,
            cuda_graph_impl="transformer_engine",
            cuda_graph_scope=("attn",),
            use_te_rng_tracker=True,
        ),
        passing=example(overlap_moe_expert_parallel_comm=True, use_megatron_fsdp=True),
    ),
    Rule(
        id="fsdp-sharding",
        kind=FindingKind.AUTOSET,
        binds=MEGATRON_LM,
        knobs=(FSDP, "use_distributed_optimizer"),
        broken=all_of(_fsdp, off("use_distributed_optimizer")),
        message="Megatron FSDP without the distributed optimizer: Megatron-LM switches it on",
        nearest=fixed(use_distributed_optimizer=True),
        source="megatron/training/arguments.py:1131",
        breaking=example(use_megatron_fsdp=True, use_distributed_optimizer=False),
        passing=example(use_megatron_fsdp=True),
    ),
    Rule(
        id="fsdp-mxfp8-reuse",
        kind=FindingKind.AUTOSET,
        binds=LM_AND_BRIDGE,
        knobs=(FSDP, REUSE),
        broken=all_of(_fsdp, on(REUSE)),
        message="Megatron FSDP with reuse_grad_buf_for_mxfp8_param_ag: the frameworks set it to false, so the memory "
        "it would save is not saved",
        nearest=fixed(reuse_grad_buf_for_mxfp8_param_ag=False),
        source="megatron/training/arguments.py:1133; src/megatron/bridge/training/config.py:1101",
        breaking=example(
            cluster={"gpu": "b200"},
            precision="mxfp8",
            fp8_param_gather=True,
            reuse_grad_buf_for_mxfp8_param_ag=True,
            use_megatron_fsdp=True,
        ),
        passing=example(cluster={"gpu": "b200"}, precision="mxfp8", fp8_param_gather=True, use_megatron_fsdp=True),
    ),
    Rule(
        id="fsdp-average",
        kind=FindingKind.AUTOSET,
        binds=BRIDGE,
        knobs=(FSDP, "average_in_collective"),
        broken=all_of(_fsdp, on("average_in_collective")),
        message="Megatron FSDP with average_in_collective: Megatron-Bridge sets it to false",
        nearest=fixed(average_in_collective=False),
        source="src/megatron/bridge/training/config.py:1096",
        breaking=example(use_megatron_fsdp=True, average_in_collective=True),
        passing=example(average_in_collective=True),
    ),
    Rule(
        id="fsdp-nccl-ub",
        kind=FindingKind.AUTOSET,
        binds=MEGATRON_LM,
        knobs=(FSDP, "nccl_ub", DOUBLE),
        broken=all_of(_fsdp, on("nccl_ub"), off(DOUBLE)),
        message="Megatron FSDP with nccl_ub: Megatron-LM switches fsdp_double_buffer on, which takes memory for a "
        "second set of buffers",
        nearest=fixed(fsdp_double_buffer=True),
        source="megatron/training/arguments.py:1177",
        breaking=example(use_megatron_fsdp=True, nccl_ub=True),
        passing=example(use_megatron_fsdp=True, nccl_ub=True, fsdp_double_buffer=True),
    ),
)
