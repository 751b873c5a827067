"""How alike two recipes are, for what the closed form leaves: doublings of sizes and differing settings."""

from __future__ import annotations

import numpy as np

from trainer.estimate.candidates import Candidates, Floats

SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "micro_batch_size",
)
SETTINGS = (
    "recompute_granularity",
    "recompute_modules",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "overlap_moe_expert_parallel_comm",
    "cuda_graph_impl",
    "cuda_graph_scope",
    "delay_wgrad_compute",
    "moe_shared_expert_overlap",
    "manual_gc",
    "moe_grouped_gemm",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "use_distributed_optimizer",
    "moe_permute_fusion",
    "moe_router_fusion",
    "tp_comm_overlap",
    "precision",
    "threads_per_rank",
)
DOUBLINGS = 2.0  # of one size after which likeness has fallen to exp(-1/2)
SETTING = 0.15  # log likeness lost with a setting that differs


def features(candidates: Candidates) -> Floats:
    """[N, K]: log2 of sizes, then a number for each value of a setting."""
    sizes = [np.log2(np.maximum(1.0, candidates.number(name, none=1.0))) for name in SIZES]
    kinds = [candidates.column(name).each(_number) for name in SETTINGS]
    columns = [np.broadcast_to(column, (candidates.count,)) for column in (*sizes, *kinds)]
    return np.stack(columns, axis=1).astype(np.float64)


def likeness(left: Floats, right: Floats) -> Floats:
    """[N, M] between 0 and 1."""
    count = len(SIZES)
    far = ((left[:, None, :count] - right[None, :, :count]) ** 2).sum(axis=-1) / (2 * DOUBLINGS**2)
    differ = (left[:, None, count:] != right[None, :, count:]).sum(axis=-1)
    result: Floats = np.exp(-far - SETTING * differ)
    return result


def _number(value: object) -> float:
    """The same for the same value in every process: a hash of text differs from run to run."""
    text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return float(int.from_bytes(text.encode(), "big") % (2**61 - 1))
