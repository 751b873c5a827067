"""Random timelines for the property tests, as lists of drawn events in whole microseconds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from tests.analyzers.drawing import BACKWARD, DISPATCH, GEMM, MAIN, Drawing

HORIZON_US = 600
WATCHDOG, OTHER_DEVICE = 300, 400  # a thread that launches nothing, one that launches on another device
COMBINE = DISPATCH.replace("dispatch", "combine")
KERNELS = (GEMM, DISPATCH, COMBINE, "void flash_fwd_kernel<x>", "void at::native::elementwise_kernel<4>")
COPIES = ("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memset (Device)")
CALLS = ("cudaStreamSynchronize", "cudaMalloc", "cudaFree", "cudaEventQuery", "cuModuleLoadData", "cudaMemcpy")
RANGES = ("gc", "pp_send_recv", "gloo:recv", "get_batch", "forward", "experts")
OPERATORS = ("aten::mm", "aten::add", "autograd::engine::evaluate_function: MmBackward0", "MyFunction")
OVERHEADS = ("Buffer Flush", "Lazy Function Loading")
LOST_CORRELATION = 10_000

# half of the draws have coarse times, so that many events start or end together: there order could matter
times = st.integers(0, HORIZON_US) | st.integers(0, HORIZON_US // 50).map(lambda coarse: 50 * coarse)
lengths = st.integers(1, 150) | st.sampled_from((50, 100))
launching_threads = st.sampled_from((MAIN, BACKWARD))
threads = st.sampled_from((MAIN, BACKWARD, WATCHDOG))
launched_before = st.none() | st.integers(-5, 250)  # us, None without a launch; clocks may differ

kernels = st.tuples(
    st.just("kernel"),
    st.sampled_from(KERNELS),
    times,
    lengths,
    launched_before,
    st.integers(1, 60),
    launching_threads,
    st.integers(0, 2),
)
copies = st.tuples(
    st.just("copy"), st.sampled_from(COPIES), times, lengths, launched_before, st.integers(1, 200), st.integers(0, 2)
)
graphs = st.tuples(
    st.just("graph"), st.lists(st.tuples(times, lengths), min_size=1, max_size=4), st.integers(0, 200), lengths
)
calls = st.tuples(st.just("call"), st.sampled_from(CALLS), times, lengths, threads)
ranges = st.tuples(st.just("range"), st.sampled_from(RANGES), times, lengths, threads)
operators = st.tuples(st.just("operator"), st.sampled_from(OPERATORS), times, lengths, threads)
overheads = st.tuples(st.just("overhead"), st.sampled_from(OVERHEADS), times, lengths)
losses = st.tuples(st.just("lost"), times, st.integers(1, 20))

things = st.one_of(kernels, kernels, kernels, copies, graphs, calls, ranges, operators, overheads, losses)
step_edges = st.lists(st.integers(0, HORIZON_US), min_size=2, max_size=4, unique=True).map(sorted)
timelines = st.tuples(step_edges, st.lists(things, min_size=1, max_size=25).filter(lambda all_: _has_work(all_)))

Thing = tuple[Any, ...]  # kind, then the arguments of the method that draws it
TimelineThings = tuple[list[int], list[Thing]]


def _has_work(drawn: list[Thing]) -> bool:
    return any(thing[0] == "kernel" for thing in drawn)


def draw(timeline: TimelineThings, *, shift: int = 0, scale: int = 1) -> Drawing:
    """Returns the timeline as a drawing, with every time scaled and then shifted."""
    edges, drawn = timeline
    drawing = Drawing()
    for number, (start, end) in enumerate(pairwise(edges)):
        drawing.step(number, start, end)
    for thing in drawn:
        _add(drawing, thing)
    for event in drawing.events:
        event["ts"] = event["ts"] * scale + shift
        event["dur"] *= scale
    return drawing


def _add(drawing: Drawing, thing: Thing) -> None:
    what, *of = thing
    _ADD[what](drawing, *of)


def _kernel(
    drawing: Drawing, name: str, start: int, length: int, before: int | None, took: int, thread: int, stream: int
) -> None:
    launched = None if before is None else start - before
    drawing.kernel(name, start, start + length, launched=launched, launch_took=took, thread=thread, stream=stream)


def _copy(drawing: Drawing, name: str, start: int, length: int, before: int | None, took: int, stream: int) -> None:
    launched = None if before is None else start - before
    drawing.copy(name, start, start + length, launched=launched, launch_took=took, stream=stream)


def _graph(drawing: Drawing, parts: list[tuple[int, int]], before: int, took: int) -> None:
    kernels_of_it = [(KERNELS[k % 2], start, start + length) for k, (start, length) in enumerate(parts)]
    drawing.graph(kernels_of_it, launched=min(start for start, _ in parts) - before, took=took)


def _spanning(add: str) -> Callable[..., None]:
    def spanning(drawing: Drawing, name: str, start: int, length: int, *thread: int) -> None:
        getattr(drawing, add)(name, start, start + length, *thread)

    return spanning


def _lost(drawing: Drawing, start: int, length: int) -> None:
    drawing.call("cudaGraphLaunch", start, start + length, MAIN, LOST_CORRELATION + start)


_ADD: dict[str, Callable[..., None]] = {
    "kernel": _kernel,
    "copy": _copy,
    "graph": _graph,
    "lost": _lost,
    **{add: _spanning(add) for add in ("call", "range", "operator", "overhead")},
}
