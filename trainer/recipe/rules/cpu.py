"""Rules of CPU runs: a CPU has no GPU number formats, no Transformer Engine kernels and no NCCL."""

from collections.abc import Callable
from typing import Any

from trainer.recipe.predicates import Test, all_of, among, has_graphs, is_moe, on, on_cpu, quantized
from trainer.recipe.rules.examples import CPU_CLUSTER
from trainer.recipe.rules.precision import STATE_DTYPES
from trainer.recipe.rules.rule import Rule, Suggestion, example, fixed
from trainer.recipe.settings import Settings

_CPU: dict[str, Any] = {"precision": "fp32", "moe_grouped_gemm": False}
TRIED = "megatron-core 0.16.1 on torch CPU, tried"


def _row(
    id: str,
    *,
    when: Test,
    why: str,
    breaking: dict[str, Any],
    nearest: Callable[[Settings], Suggestion],
    passing: dict[str, Any] | None = None,
    source: str = TRIED,
) -> Rule:
    return Rule(
        id=f"cpu-{id}",
        knobs=tuple(breaking),
        broken=all_of(on_cpu, when),
        message=f"a CPU cannot run this: {why}",
        nearest=nearest,
        source=source,
        breaking=example(cluster=CPU_CLUSTER, **_CPU | breaking),
        passing=example(cluster=CPU_CLUSTER, **_CPU | (passing or {})),
    )


def _switched_off(knob: str, why: str, source: str = TRIED, **others: Any) -> Rule:
    """Returns the rule of a bool knob that must be false on CPUs."""
    return _row(
        knob.replace("_", "-"),
        when=on(knob),
        why=f"{knob} {why}",
        breaking={knob: True} | others,
        nearest=fixed(**{knob: False}),
        passing=others,
        source=source,
    )


ROWS = (
    _row(
        "precision",
        when=quantized,
        why="{precision} needs a GPU's tensor cores and Transformer Engine",
        breaking={"precision": "fp8_current"},
        passing={"precision": "bf16"},
        nearest=fixed(precision="bf16"),
    ),
    _row(
        "graphs",
        when=has_graphs,
        why="{cuda_graph_impl} graphs are CUDA's",
        breaking={"cuda_graph_impl": "local", "cuda_graph_scope": ("attn",)},
        nearest=fixed(cuda_graph_impl="none", cuda_graph_scope=None, use_te_rng_tracker=False),
    ),
    _row(
        "flex-dispatcher",
        when=among("moe_token_dispatcher_type", "flex"),
        why="DeepEP, HybridEP and NCCL EP move tokens between GPUs",
        breaking={"moe_token_dispatcher_type": "flex"},
        passing={"moe_token_dispatcher_type": "allgather"},
        nearest=fixed(moe_token_dispatcher_type="alltoall"),
    ),
    _row(
        "grouped-gemm",
        when=all_of(is_moe, on("moe_grouped_gemm"), among("precision", "fp32")),
        why="without Transformer Engine, grouped GEMM is for bf16 only",
        breaking={"moe_grouped_gemm": True},
        passing={"moe_grouped_gemm": True, "precision": "bf16"},
        nearest=fixed(moe_grouped_gemm=False),
        source="megatron-core 0.16.1 moe/experts.py GroupedMLP: only supports bf16",
    ),
    _row(
        "ep-overlap",
        when=on("overlap_moe_expert_parallel_comm"),
        why="EP communication overlap runs dispatch and experts on CUDA streams of their own",
        breaking={"overlap_moe_expert_parallel_comm": True},
        nearest=fixed(overlap_moe_expert_parallel_comm=False, delay_wgrad_compute=False),
    ),
    _switched_off(
        "tp_comm_overlap",
        "is Transformer Engine's",
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        expert_tensor_parallel_size=1,
    ),
    _switched_off("moe_permute_fusion", "is a Transformer Engine kernel"),
    _switched_off("moe_router_fusion", "is a Transformer Engine kernel"),
    _switched_off(
        "use_transformer_engine_op_fuser",
        "is Transformer Engine's",
        source="megatron-core 0.16.1 models/gpt/gpt_layer_specs.py:461: requires Transformer Engine 1.13",
    ),
    _switched_off(
        "overlap_dispatch_backward_with_experts_wgrad",
        "defers the experts' weight gradients, as Transformer Engine's layers can",
        source="transformer_config.py:3090: requires Transformer Engine 2.3",
    ),
    _row(
        "precision-aware-optimizer",
        when=on("use_precision_aware_optimizer"),
        why="use_precision_aware_optimizer needs Transformer Engine's FusedAdam",
        breaking={"use_precision_aware_optimizer": True},
        nearest=fixed(use_precision_aware_optimizer=False, **dict.fromkeys(STATE_DTYPES, "float32")),
    ),
    _switched_off("optimizer_cpu_offload", "moves state to where it already is"),
    _switched_off("cpu_offloading", "moves activations to where they already are"),
    _switched_off(
        "fine_grained_activation_offloading",
        "moves activations to where they already are",
        offload_modules=("core_attn",),
    ),
    _switched_off("use_megatron_fsdp", "manages CUDA memory"),
    _switched_off("nccl_ub", "registers buffers with NCCL"),
    _switched_off("average_in_collective", "needs a collective that averages, and gloo's only sum"),
    _switched_off("use_te_rng_tracker", "is Transformer Engine's"),
    _row(
        "fused-loss",
        when=all_of(on("cross_entropy_loss_fusion"), among("cross_entropy_fusion_impl", "te")),
        why="the te cross entropy is a Transformer Engine kernel",
        breaking={"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"},
        passing={"cross_entropy_loss_fusion": True},
        nearest=fixed(cross_entropy_fusion_impl="native"),
    ),
)
