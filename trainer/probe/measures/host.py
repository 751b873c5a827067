"""Measures the host: launches of a layer, single launches, a synchronization, a garbage collection."""

from __future__ import annotations

import gc
import time
from typing import Any

from trainer.microbenchmarks.row import Row
from trainer.probe.bench import REPEATS, US, Bench

FEW_TOKENS = 16  # tokens of a sequence so short that the device has almost nothing to do
LAUNCHES = 200


def layer(bench: Bench, row: Row) -> list[float]:
    """Returns the µs of a layer, forward and backward, on so few tokens that the host's launches take most of it."""
    from trainer.engines.megatron.one_layer import one_layer

    with one_layer(row.recipe(bench.recipe), bench.device, moe=bool(row.sizes["moe"])) as found:
        return bench.repeats(lambda: found.step(FEW_TOKENS))


def launch(bench: Bench, row: Row) -> list[float]:
    one = bench.tensor(8)
    return [_launched(bench, one) for _ in range(REPEATS)]


def launch_profiled(bench: Bench, row: Row) -> list[float]:
    one = bench.tensor(8)
    kinds = bench.torch.profiler.ProfilerActivity
    with bench.torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]):
        return [_launched(bench, one) for _ in range(REPEATS)]


def _launched(bench: Bench, one: Any) -> float:
    """Returns the mean µs per launch of many launches without synchronization."""
    bench.device.synchronize()
    started = time.perf_counter()
    for _ in range(LAUNCHES):
        one.add_(1.0)
    return (time.perf_counter() - started) / LAUNCHES * US


def sync(bench: Bench, row: Row) -> list[float]:
    one = bench.tensor(8)
    return bench.repeats(lambda: one.sum().item())


def garbage(bench: Bench, row: Row) -> list[float]:
    gc.unfreeze()  # a run's collections search what it has imported as well
    return bench.repeats(gc.collect)


MEASURES = {
    "host_dense": layer,
    "host_few": layer,
    "host_many": layer,
    "launch": launch,
    "launch_profiled": launch_profiled,
    "sync": sync,
    "garbage": garbage,
}
