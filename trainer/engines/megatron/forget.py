"""Resets, after every burst, the state that Megatron-Core and Transformer Engine keep in the process between two
models. Ranks that stay up would otherwise reuse that of the previous burst: buffers for another EP, a note that graphs
were captured, FP8 histories of a model that is gone."""

from __future__ import annotations

from typing import Any

import torch


def forget_the_burst() -> None:
    """Resets everything; the parallel state last, since the resets before it may need its groups."""
    from megatron.core import num_microbatches_calculator, parallel_state

    _forget_graphs()
    _forget_expert_buffers()
    _forget_fp8()
    _forget_moe_metrics()
    _forget_rotary_embeddings()
    parallel_state.destroy_model_parallel()
    num_microbatches_calculator.destroy_num_microbatches_calculator()


def _forget_graphs() -> None:
    """Deletes graphs of layers and of the whole iteration, with their memory: they are in classes and module globals.

    Sources: cuda_graphs.py:319-517, full_cuda_graph.py:60, :97-99.
    """
    from megatron.core import full_cuda_graph
    from megatron.core.transformer import cuda_graphs

    record, manager = cuda_graphs._CudagraphGlobalRecord, cuda_graphs.CudaGraphManager
    if record.cudagraph_created or record.cudagraph_record or getattr(manager, "global_mempool", None) is not None:
        cuda_graphs.delete_cuda_graphs()
        cuda_graphs.fwd_buffer_reuse_ref_count = cuda_graphs.bwd_buffer_reuse_ref_count = 0
        if (pool := getattr(record, "tensor_reuse_pool", None)) is not None:
            for kept in (pool.tensor_strong_refs, pool.tensor_strong_refs_dataptrs, pool.pool):
                kept.clear()
        torch.cuda.set_stream(torch.cuda.default_stream())  # capturing moved this process to a stream of its own
    whole = full_cuda_graph.FullCudaGraphWrapper
    for stage in ("training", "validation"):
        whole.curr_iteration[stage] = 0
        whole.cuda_graph[stage] = whole.result[stage] = None
        full_cuda_graph.StaticBufferLoader.static_buffers[stage] = []


def _forget_expert_buffers() -> None:
    """Deletes the buffers of DeepEP and HybridEP, which are created once and would ignore later settings of SMs and EP.

    Source: fused_a2a.py:60, :353.
    """
    from megatron.core.transformer.moe import fused_a2a

    for name in ("_buffer", "_hybrid_ep_buffer"):
        if getattr(fused_a2a, name, None) is not None:
            setattr(fused_a2a, name, None)


def _forget_fp8() -> None:
    """Deletes Transformer Engine's table of scaling factors, which has a row for every tensor of every model."""
    if (manager := _fp8_manager()) is not None:
        manager.reset()


def _fp8_manager() -> Any | None:
    try:
        from transformer_engine.pytorch.fp8 import FP8GlobalStateManager
    except ImportError:
        return None
    return FP8GlobalStateManager


def _forget_moe_metrics() -> None:
    from megatron.core.transformer.moe import moe_utils

    getattr(moe_utils, "_MOE_LAYER_WISE_LOGGING_TRACKER", {}).clear()  # Megatron-Core 0.16
    try:
        from megatron.core.transformer.moe import moe_logging  # Megatron-Core 0.19
    except ImportError:
        return
    moe_logging.destroy_moe_metrics_tracker()


def _forget_rotary_embeddings() -> None:
    """Empties the caches of rotary embeddings: they keep the embedding, whose hooks of `overlap_param_gather` keep the
    whole model and its process groups.

    Source: rotary_pos_embedding.py:177, yarn_rotary_pos_embedding.py:159.
    """
    from megatron.core.models.common.embeddings import rotary_pos_embedding, yarn_rotary_pos_embedding

    rotary_pos_embedding.RotaryEmbedding.forward.cache_clear()
    yarn_rotary_pos_embedding.YarnRotaryEmbedding.forward.cache_clear()
