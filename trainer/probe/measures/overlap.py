"""Measures how much communication and compute slow each other down: in two streams of one GPU, each alone and both at
once."""

from __future__ import annotations

from statistics import median

from trainer.microbenchmarks.row import Row
from trainer.probe.bench import REPEATS, Bench
from trainer.probe.measures.compute import OF_A_LAYER, Work
from trainer.probe.measures.links import dispatching

SIDE = 4096  # side of a square GEMM
LONG = 4  # ratio of the concurrent work's duration to that of the measured work
EXCHANGES = 4  # number of exchanges of a layer, forward and backward
REDUCED_BYTES = 1 << 28


def overlapped_layer(bench: Bench, row: Row) -> list[float]:
    """Returns the µs until a layer's kernels and, in a second stream, its expert exchanges are both done."""
    recipe = row.recipe(bench.recipe)
    works = [build(bench, recipe) for build in OF_A_LAYER.values()]
    cuda = bench.torch.cuda
    exchange, stream = dispatching(bench, recipe), cuda.Stream()

    def both() -> None:
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(EXCHANGES):
                exchange()
        for work in works:
            work()
        cuda.current_stream().wait_stream(stream)

    return bench.repeats(both, together=range(bench.world), on_device=True)


def contention(bench: Bench, row: Row) -> list[float]:
    """Returns the ratio of a GEMM's time during longer exchanges to its time alone."""
    return _over_alone(bench, _product(bench), dispatching(bench, row.recipe(bench.recipe)))


def slowed(bench: Bench, row: Row) -> list[float]:
    """Returns the ratio of an exchange's time during longer GEMMs to its time alone."""
    return _over_alone(bench, dispatching(bench, row.recipe(bench.recipe)), _product(bench))


def concurrent_reduction(bench: Bench, row: Row) -> list[float]:
    """Returns the ratio of a gradient reduction's rate during longer GEMMs to its rate alone."""
    part = bench.tensor(REDUCED_BYTES // 4 // bench.world, dtype=bench.torch.float32)
    whole = bench.tensor(len(part) * bench.world, dtype=bench.torch.float32)
    reduction = bench.dist.reduce_scatter_tensor
    return [1 / each for each in _over_alone(bench, lambda: reduction(part, whole), _product(bench))]


def _product(bench: Bench) -> Work:
    left, right = bench.tensor(SIDE, SIDE), bench.tensor(SIDE, SIDE)
    return lambda: left @ right


def _over_alone(bench: Bench, work: Work, other: Work) -> list[float]:
    ranks = range(bench.world)
    alone, one = (median(bench.repeats(each, together=ranks, on_device=True)) for each in (work, other))
    times = max(1, round(bench.most(LONG * alone / max(one, 1.0))))
    return [_concurrent_us(bench, work, other, times) / alone for _ in range(REPEATS)]


def _concurrent_us(bench: Bench, work: Work, other: Work, times: int) -> float:
    """Returns the µs of `work` by CUDA events while `other` runs `times` times in a second stream."""
    bench.dist.barrier()
    bench.device.synchronize()
    with bench.torch.cuda.stream(bench.torch.cuda.Stream()):
        for _ in range(times):
            other()
    return bench.device_us(work)


MEASURES = {"beside": overlapped_layer, "contention": contention, "slowed": slowed, "dp_beside": concurrent_reduction}
