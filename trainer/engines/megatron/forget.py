"""Resets, after every burst, the state that Megatron-Core and Transformer Engine keep in the process between two
models. Ranks that stay up would otherwise reuse that of the previous burst: buffers for another EP, a note that graphs
were captured, FP8 histories of a model that is gone."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

_CORE = "megatron.core."
# (module, class of it or none, attribute, its value before any model): buffers, singletons and flags that keep the
# sizes, streams and tensors of the model that made them. A release without one of them is passed over.
KEPT: tuple[tuple[str, str | None, str, Any], ...] = (
    ("transformer.moe.fused_a2a", None, "_buffer", None),  # of DeepEP
    ("transformer.moe.fused_a2a", None, "_hybrid_ep_buffer", None),
    ("transformer.moe.paged_stash", "PagedStashManager", "STASH_MGR", None),  # from 0.18 on
    ("pipeline_parallel.fine_grained_activation_offload", "PipelineOffloadManager", "OFFLOAD_MGR", None),
    ("transformer.experimental_attention_variant.dsa_kernels", None, "_BACKEND", None),  # from 0.19 on
    ("transformer.experimental_attention_variant.dsa_kernels", None, "_BACKEND_SELECTION", None),
    ("full_cuda_graph", None, "_shared_graph_pool", None),  # from 0.18 on
    ("full_cuda_graph", None, "_shared_capture_stream", None),
    ("optimizer.optimizer_cuda_graph", "OptimizerCudaGraphWrapper", "cuda_graph", None),  # from 0.17 on
    ("optimizer.optimizer_cuda_graph", "OptimizerCudaGraphWrapper", "result", None),
    ("optimizer.optimizer_cuda_graph", "OptimizerCudaGraphWrapper", "curr_iteration", 0),
    ("transformer.cuda_graphs", None, "_IS_GRAPH_CAPTURING", False),
    ("transformer.cuda_graphs", None, "_IS_GRAPH_WARMUP", False),  # 0.16.1 never sets it back
    ("transformer.cuda_graphs", None, "fwd_buffer_reuse_ref_count", 0),
    ("transformer.cuda_graphs", None, "bwd_buffer_reuse_ref_count", 0),
)


def forget_the_burst() -> None:
    """Resets everything; the parallel state last, since the resets before it may need its groups. From 0.19 on that
    ends NCCL EP's context too, which must happen before the process group ends."""
    from megatron.core import num_microbatches_calculator, parallel_state

    _forget_graphs()
    _forget_kept()
    _forget_fp8()
    _forget_moe_metrics()
    _forget_rotary_embeddings()
    parallel_state.destroy_model_parallel()
    num_microbatches_calculator.destroy_num_microbatches_calculator()


def _forget_kept() -> None:
    """Gives every attribute of `KEPT` its first value, where its module was imported."""
    for module, class_name, attribute, value in KEPT:
        holder: Any = sys.modules.get(_CORE + module)
        holder = getattr(holder, class_name, None) if class_name else holder
        if hasattr(holder, attribute):
            setattr(holder, attribute, value)


def _forget_graphs() -> None:
    """Deletes graphs of layers and of the whole iteration, with their memory: they are in classes and module globals.

    Sources: cuda_graphs.py:319-517, full_cuda_graph.py:60, :97-99.
    """
    from megatron.core import full_cuda_graph
    from megatron.core.transformer import cuda_graphs

    record, manager = cuda_graphs._CudagraphGlobalRecord, cuda_graphs.CudaGraphManager
    if record.cudagraph_created or record.cudagraph_record or getattr(manager, "global_mempool", None) is not None:
        cuda_graphs.delete_cuda_graphs()
        if (pool := getattr(record, "tensor_reuse_pool", None)) is not None:
            for kept in (pool.tensor_strong_refs, pool.tensor_strong_refs_dataptrs, pool.pool):
                kept.clear()
        torch.cuda.set_stream(torch.cuda.default_stream())  # capturing moved this process to a stream of its own
    whole = full_cuda_graph.FullCudaGraphWrapper
    for stage in ("training", "validation"):
        whole.curr_iteration[stage] = 0
        whole.cuda_graph[stage] = whole.result[stage] = None
        full_cuda_graph.StaticBufferLoader.static_buffers[stage] = []


def _forget_fp8() -> None:
    """Deletes Transformer Engine's table of scaling factors, which has a row for every tensor of every model."""
    if (manager := _fp8_manager()) is not None:
        manager.reset()


def _fp8_manager() -> Any | None:
    """Returns the class that keeps the factors; it moved in Transformer Engine 2.9, where the old module still is, and
    will go."""
    for module in ("quantization", "fp8"):
        try:
            return importlib.import_module(f"transformer_engine.pytorch.{module}").FP8GlobalStateManager
        except (ImportError, AttributeError):
            continue
    return None


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
