"""Tries the software that recipes ask for: imports it, and uses a small piece where an import proves little."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

from trainer.microbenchmarks.row import Row
from trainer.probe.bench import Bench, UnavailableError

RANGE = "probe"  # name of a range that a profile must show


def _try(attempt: Callable[[Bench], object]) -> Callable[[Bench, Row], list[float]]:
    """Returns a measure that is 1 if the attempt returns; an exception of the attempt is the reason why it does not
    work."""

    def measure(bench: Bench, row: Row) -> list[float]:
        attempt(bench)
        return [1.0]

    return measure


def _imports(name: str) -> Callable[[Bench], object]:
    return lambda bench: import_module(name)


def _grouped(bench: Bench) -> None:
    engine: Any = import_module("transformer_engine.pytorch")
    engine.GroupedLinear(2, 64, 64, bias=False, params_dtype=bench.dtype)(bench.tensor(64, 64), [32, 32])


def _fp8(bench: Bench) -> None:
    engine: Any = import_module("transformer_engine.pytorch")
    layer = engine.Linear(64, 64, bias=False, params_dtype=bench.dtype)
    with engine.fp8_autocast(enabled=True):
        layer(bench.tensor(64, 64))


def _graphs(bench: Bench) -> None:
    one, graph = bench.tensor(8), bench.torch.cuda.CUDAGraph()
    with bench.torch.cuda.graph(graph):
        one.add_(1.0)
    graph.replay()


def _profiler(bench: Bench) -> None:
    profiler = bench.torch.profiler
    with profiler.profile() as found, profiler.record_function(RANGE):
        bench.tensor(8).add_(1.0)
    if RANGE not in {event.key for event in found.key_averages()}:
        raise UnavailableError("a profile lacks the range that was opened in it")


def _nsys(bench: Bench) -> None:
    if shutil.which("nsys") is None:
        raise UnavailableError("no nsys is on the path")


def _nvml(bench: Bench) -> None:
    bench.torch.cuda.utilization()


def _hybridep(bench: Bench) -> None:
    if not hasattr(import_module("deep_ep"), "HybridEPBuffer"):
        raise UnavailableError("this deep_ep has no HybridEPBuffer")


MEASURES = {
    "transformer_engine": _try(_imports("transformer_engine.pytorch")),
    "grouped_gemm": _try(_grouped),
    "fp8": _try(_fp8),
    "graphs": _try(_graphs),
    "nvml": _try(_nvml),
    "nsys": _try(_nsys),
    "deepep": _try(_imports("deep_ep")),
    "hybridep": _try(_hybridep),
    "profiler": _try(_profiler),
    "megatron": _try(_imports("megatron.core")),
}
