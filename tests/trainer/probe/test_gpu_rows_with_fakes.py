"""Rows that only GPUs measure, on a fake one: two streams with a clock, a fake allocator, fake libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.engines.megatron import one_layer
from trainer.microbenchmarks.row import Row
from trainer.probe import bench as benches
from trainer.probe.bench import Bench, UnavailableError
from trainer.probe.measures import links, measures, memory, overlap
from trainer.recipe import Recipe

RECIPE = Recipe.model_validate({"name": "faked", "model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 1}})
SLOWED = 1.5  # slowdown of work that runs while the other stream is busy
PRODUCT_US, EXCHANGE_US, REDUCTION_US = 400.0, 100.0, 200.0


@dataclass(frozen=True)
class Stream:
    gpu: Gpu
    name: str

    def wait_stream(self, other: Stream) -> None:
        ends = self.gpu.ends
        ends[self.name] = max(ends[self.name], ends[other.name])


@dataclass
class Gpu:
    """A device of two streams, in µs: `launch` queues work on the current one, which takes the host `launching_us`."""

    name: str = "cpu:0"  # torch computes here, and no row takes it for CPU ranks
    now: float = 0.0
    launching_us: float = 0.0
    current: str = "main"
    ends: dict[str, float] = field(default_factory=lambda: {"main": 0.0, "side": 0.0})
    reserved: list[int] = field(default_factory=list)

    def launch(self, us: float) -> None:
        self.now += self.launching_us
        other = self.ends["side" if self.current == "main" else "main"]
        start = max(self.now, self.ends[self.current])
        self.ends[self.current] = start + us * (SLOWED if other > start else 1.0)

    def synchronize(self) -> None:
        self.now = max(self.now, *self.ends.values())

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.current = stream.name
        yield
        self.current = "main"

    def event(self, *, enable_timing: bool) -> Any:
        made = SimpleNamespace(at=None)
        made.record = lambda: setattr(made, "at", max(self.now, self.ends[self.current]))
        made.elapsed_time = lambda other: (other.at - made.at) / 1e3
        return made


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def bench(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Bench:
    clock = SimpleNamespace(perf_counter=lambda: gpu.now / 1e6, monotonic=lambda: gpu.now / 1e6)
    monkeypatch.setattr(benches, "time", clock)
    monkeypatch.setattr(overlap, "SIDE", 8)
    monkeypatch.setattr(overlap, "REDUCED_BYTES", 1 << 10)
    monkeypatch.setattr(overlap, "_product", lambda bench: lambda: gpu.launch(PRODUCT_US))
    monkeypatch.setattr(overlap, "dispatching", lambda bench, recipe: lambda: gpu.launch(EXCHANGE_US))
    monkeypatch.setattr(overlap, "OF_A_LAYER", {"gemm": lambda bench, recipe: lambda: gpu.launch(PRODUCT_US)})
    found = Bench(RECIPE, gpu, rank=0, world=1)  # pyrefly: ignore[bad-argument-type]
    found.torch = _Torch(gpu)
    found.dist = SimpleNamespace(
        barrier=lambda: None,
        all_reduce=lambda tensor, op: None,
        ReduceOp=SimpleNamespace(MAX=None),
        new_group=lambda ranks: SimpleNamespace(size=lambda: len(ranks)),
        reduce_scatter_tensor=lambda part, whole: gpu.launch(REDUCTION_US),
    )
    return found


class _Torch:
    """torch with the fake GPU as its CUDA; `pinned`: the host's tensors, made of zeros."""

    def __init__(self, gpu: Gpu) -> None:
        self.pinned: list[torch.Tensor] = []
        self.cuda = SimpleNamespace(
            Stream=lambda: Stream(gpu, "side"),
            current_stream=lambda: Stream(gpu, gpu.current),
            _sleep=gpu.launch,  # a cycle takes 1 µs
            stream=gpu.stream,
            Event=gpu.event,
            empty_cache=lambda: None,
            reset_peak_memory_stats=lambda: None,
            max_memory_reserved=lambda: gpu.reserved.pop(0),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *shape: int, dtype: Any, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        self.pinned.append(torch.zeros(*shape, dtype=dtype))
        return self.pinned[-1]


def row(kind: str, **sizes: float) -> Row:
    return Row(group="overlap", kind=kind, name=kind, unit="us", sizes=sizes)


@pytest.mark.parametrize(("kind", "expected"), [("contention", SLOWED), ("slowed", SLOWED), ("dp_beside", 1 / SLOWED)])
def test_work_is_timed_by_events_while_the_other_stream_is_busy(bench: Bench, kind: str, expected: float) -> None:
    assert measures()[kind](bench, row(kind)) == pytest.approx([expected] * benches.REPEATS)


def test_a_layer_beside_its_exchanges_ends_when_both_streams_have(bench: Bench) -> None:
    repeats = measures()["beside"](bench, row("beside"))
    assert repeats == pytest.approx([SLOWED * PRODUCT_US] * benches.REPEATS)


def test_kernels_that_are_shorter_than_their_launch_are_timed_without_it(bench: Bench, gpu: Gpu) -> None:
    gpu.launching_us = 50.0

    def work() -> None:
        for _ in range(20):
            gpu.launch(5.0)

    assert bench.repeats(work) == pytest.approx([20 * 50.0 + 5.0] * benches.REPEATS)
    assert bench.repeats(work, on_device=True) == pytest.approx([20 * 5.0] * benches.REPEATS)


@pytest.mark.parametrize("back", [0.0, 1.0])
def test_copies_go_through_pinned_memory_in_both_directions(bench: Bench, back: float) -> None:
    measures()["copy"](bench, row("copy", gb=1e-6, back=back))
    (here,) = bench.torch.pinned
    assert bool(here.any()) == bool(back)


def test_growth_in_the_second_step_leaves_the_optimizers_state_out(
    bench: Bench, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(16, 16, bias=False)

    @contextmanager
    def layer(recipe: Recipe, device: Any, *, moe: bool) -> Iterator[Any]:
        yield SimpleNamespace(model=model, forward=lambda: model(torch.ones(1, 16)).sum())

    monkeypatch.setattr(one_layer, "one_layer", layer)
    state_bytes = 2 * 16 * 16 * 4 + 4  # two moments and the step's count
    gpu.reserved = [3 * memory.GIB, 3 * memory.GIB + state_bytes + memory.GIB // 2]
    assert measures()["second_step"](bench, row("second_step")) == [0.5]


@pytest.mark.parametrize(("backend", "name"), [("deepep", "fused_dispatch"), ("hybridep", "hybrid_ep_dispatch")])
def test_the_flex_dispatchers_are_called_as_megatron_calls_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, backend: str, name: str
) -> None:
    called: list[dict[str, Any]] = []
    library(monkeypatch, **{name: CALLED[name](called)})
    links.dispatching(bench, flex(backend))()
    (given,) = called
    tokens, experts, topk = 4096, 128, 8
    assert given["x"].shape == (tokens, 2048)
    chosen = given["where"] if backend == "hybridep" else given["indices"]
    assert chosen.shape == (tokens, experts if backend == "hybridep" else topk)
    load = chosen.sum(0) if backend == "hybridep" else torch.bincount(chosen.flatten(), minlength=experts)
    assert int(load.min()) == int(load.max()) == tokens * topk // experts
    assert given["experts"] == experts


@pytest.mark.parametrize("backend", ["deepep", "hybridep"])
def test_a_dispatcher_that_is_not_installed_is_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    library(monkeypatch)
    with pytest.raises(UnavailableError, match=f"{backend} is not installed"):
        links.dispatching(bench, flex(backend))


def flex(backend: str) -> Recipe:
    return RECIPE.replace({"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend})


def library(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    moe: Any = ModuleType("megatron.core.transformer.moe")
    moe.fused_a2a = SimpleNamespace(**functions)
    monkeypatch.setitem(sys.modules, moe.__name__, moe)


def _fused(called: list[dict[str, Any]]) -> Callable[..., None]:
    def fused_dispatch(x: Any, token_indices: Any, token_probs: Any, num_experts: int, group: Any) -> None:
        called.append({"x": x, "indices": token_indices, "experts": num_experts})

    return fused_dispatch


def _hybrid(called: list[dict[str, Any]]) -> Callable[..., None]:
    def hybrid_ep_dispatch(x: Any, routing_map: Any, probs: Any, group: Any, num_local_experts: int) -> None:
        called.append({"x": x, "where": routing_map, "experts": num_local_experts * group.size()})

    return hybrid_ep_dispatch


CALLED = {"fused_dispatch": _fused, "hybrid_ep_dispatch": _hybrid}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_measures_copies_in_both_directions() -> None:
    from trainer.engines.megatron.device import open_device

    real = Bench(RECIPE, open_device(0), rank=0, world=1)
    for back in (0.0, 1.0):
        assert min(links.copy(real, row("copy", gb=0.1, back=back))) > 0
