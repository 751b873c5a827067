"""Checks what a warm rank forgets of the burst before. Graphs and buffers are fakes here, without a GPU."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import pytest

from trainer.recipe.rules.examples import recipe_of
from trainer.recipe.rules.rule import example

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
    pool = getattr(_CudagraphGlobalRecord, "tensor_reuse_pool", None)  # up to 0.18
    if pool is not None:
        pool.tensor_strong_refs.append(torch.zeros(1))
    CudaGraphManager.global_mempool = object()
    forget()
    assert _CudagraphGlobalRecord.cudagraph_created is False  # pyrefly: ignore[unnecessary-comparison]
    assert pool is None or pool.tensor_strong_refs == []
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


def test_buffers_singletons_and_flags_are_those_of_the_next_model(forget: Any) -> None:
    from trainer.engines.megatron.forget import KEPT

    old, held = object(), []
    for module, class_name, attribute, first in KEPT:
        with contextlib.suppress(ImportError, AttributeError):  # a release without it
            holder: Any = importlib.import_module(f"megatron.core.{module}")
            holder = getattr(holder, class_name) if class_name else holder
            assert getattr(holder, attribute) == first or class_name  # a class may hold one of an earlier test
            setattr(holder, attribute, old)
            held.append((holder, attribute, first))
    assert len(held) >= 7
    forget()
    assert [getattr(holder, attribute) for holder, attribute, _ in held] == [first for *_, first in held]


def test_the_parallel_state_goes_before_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL EP's context, which the parallel state ends, needs the group's communicator."""
    from megatron.core import parallel_state

    from trainer.engines.megatron import groups

    calls: list[str] = []
    monkeypatch.setattr(parallel_state, "initialize_model_parallel", lambda *_, **__: calls.append("made"))
    monkeypatch.setattr(groups, "forget_the_burst", lambda: calls.append("parallel state"))
    monkeypatch.setattr(groups.dist, "destroy_process_group", lambda: calls.append("process group"))
    with groups.parallel_state_of(recipe_of(example())):
        pass
    assert calls == ["made", "parallel state", "process group"]


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
