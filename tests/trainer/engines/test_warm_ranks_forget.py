"""Checks what a warm rank forgets of the burst before. Graphs and buffers are fakes here, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.megatron


@pytest.fixture
def forget() -> Any:
    from trainer.engines.megatron.cpu import megatron_on_cpu
    from trainer.engines.megatron.forget import forget_the_burst

    def forgotten() -> None:
        with megatron_on_cpu():
            torch.cuda.set_stream = lambda stream: None  # a CPU build of torch cannot
            forget_the_burst()

    kept = torch.cuda.set_stream
    yield forgotten
    torch.cuda.set_stream = kept


def test_graphs_of_layers_can_be_made_again(forget: Any) -> None:
    from megatron.core.transformer.cuda_graphs import CudaGraphManager, _CudagraphGlobalRecord

    _CudagraphGlobalRecord.cudagraph_created = True
    _CudagraphGlobalRecord.tensor_reuse_pool.tensor_strong_refs.append(torch.zeros(1))
    CudaGraphManager.global_mempool = object()
    forget()
    assert _CudagraphGlobalRecord.cudagraph_created is False  # pyrefly: ignore[unnecessary-comparison]
    assert _CudagraphGlobalRecord.tensor_reuse_pool.tensor_strong_refs == []
    assert CudaGraphManager.global_mempool is None


def test_a_graph_of_the_whole_iteration_can_be_made_again(forget: Any) -> None:
    from megatron.core.full_cuda_graph import FullCudaGraphWrapper, StaticBufferLoader

    FullCudaGraphWrapper.curr_iteration["training"] = 9
    FullCudaGraphWrapper.cuda_graph["training"] = object()
    FullCudaGraphWrapper.result["training"] = object()
    StaticBufferLoader.static_buffers["training"].append({})
    forget()
    assert FullCudaGraphWrapper.curr_iteration == {"training": 0, "validation": 0}
    assert FullCudaGraphWrapper.cuda_graph == FullCudaGraphWrapper.result == {"training": None, "validation": None}
    assert StaticBufferLoader.static_buffers == {"training": [], "validation": []}


def test_buffers_of_expert_parallelism_are_made_for_the_next_settings(forget: Any) -> None:
    from megatron.core.transformer.moe import fused_a2a

    fused_a2a._buffer, fused_a2a._hybrid_ep_buffer = object(), object()
    forget()
    assert fused_a2a._buffer is None
    assert fused_a2a._hybrid_ep_buffer is None


def test_scaling_factors_of_fp8_are_those_of_the_next_model(forget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.engines.megatron import forget as forgetting

    class Manager:
        resets = 0

        @classmethod
        def reset(cls) -> None:
            cls.resets += 1

    monkeypatch.setattr(forgetting, "_fp8_manager", lambda: Manager)
    forget()
    assert Manager.resets == 1
