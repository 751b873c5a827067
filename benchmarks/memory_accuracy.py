"""How good the memory estimate is, on measured runs: errors by part, the bound, and which rank was measured.

The constants that resting memory or peaks fixed are fitted again without each test case in turn, whatever its
platforms; the others are counted from Megatron-Core's and Transformer Engine's tensors and fitted to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.golden_runs import GoldenRun
from trainer.estimate.bound import FEATURES, Calibration
from trainer.estimate.candidates import Floats, one
from trainer.estimate.memory import MemoryTable, memory_of
from trainer.estimate.memory_constants import constant

GIB = 2.0**30
RESTING = ("weights", "gradients", "master_weights", "optimizer", "buffers")
LARGE_GIB = 20.0
COVERED = 0.98  # of the runs, which the bound is to hold for


@dataclass(frozen=True, kw_only=True)
class Judged:
    """GiB of the measured rank, predicted without the run's own test case."""

    run: GoldenRun
    resting: float
    peak: float
    upper: float

    @property
    def measured(self) -> float:
        return self.run.peak_bytes / GIB

    @property
    def error(self) -> float:
        return self.peak / self.measured - 1


@dataclass(frozen=True, kw_only=True)
class _Predicted:
    run: GoldenRun
    table: MemoryTable
    resting: float
    peak: float
    uneven: float  # what the imbalance adds
    widened: float  # share that the bound adds for what was never measured


def judge(runs: Iterable[GoldenRun]) -> list[Judged]:
    """Every run that has a recipe, by leave-one-case-out."""
    predicted = [_predicted(run) for run in runs if run.recipe]
    cases = sorted({each.run.case for each in predicted})
    found = []
    for case in cases:
        others = [each for each in predicted if each.run.case != case]
        small_gib = _small_buffers(others)
        margin = _margin(others, small_gib)
        found += [_judged(each, small_gib, margin) for each in predicted if each.run.case == case]
    return found


def _predicted(run: GoldenRun) -> _Predicted:
    assert run.recipe is not None
    table = memory_of(one(run.recipe))
    parts = {name: float(sizes[0, -1]) for name, sizes in table.by_part.items()}
    resting = sum(parts[name] for name in RESTING)
    hottest = float(table.peak_gib[0])
    ratio = float(table.upper_gib[0]) / hottest
    uneven = (
        (constant("imbalance") - 1) * float(table.routed_gib[0])
        if run.recipe.knob("expert_model_parallel_size") > 1
        else 0.0
    )
    return _Predicted(
        run=run,
        table=table,
        resting=resting,
        peak=resting + _moving(parts),
        uneven=uneven,
        widened=ratio / (1 + uneven / hottest) - 1 - constant("margin"),
    )


def _moving(parts: dict[str, float]) -> float:
    """What the allocator counts beside the resting parts: what a graph owns only while it is captured, and then
    neither loss nor eager activations live."""
    return max(parts["cuda_graphs"], parts["activations"] + parts["logits"] + parts["workspace"])


def _small_buffers(runs: Sequence[_Predicted]) -> float:
    """GiB that resting memory is above its closed form without `blas_workspace`, the median."""
    fixed = constant("blas_workspace") / 1024
    return float(np.median([each.run.resting_bytes / GIB - each.resting + fixed for each in runs]))


def _margin(runs: Sequence[_Predicted], small_gib: float) -> float:
    """The share above point and imbalance that covers the runs."""
    over = [each.run.peak_bytes / GIB / (_peak(each, small_gib) + each.uneven) - 1 - each.widened for each in runs]
    return max(0.0, float(np.quantile(over, COVERED)))


def _peak(each: _Predicted, small_gib: float) -> float:
    return each.peak - constant("blas_workspace") / 1024 + small_gib


def _judged(each: _Predicted, small_gib: float, margin: float) -> Judged:
    peak = _peak(each, small_gib)
    return Judged(
        run=each.run,
        resting=each.resting - each.peak + peak,
        peak=peak,
        upper=(peak + each.uneven) * (1 + margin + each.widened),
    )


def calibration(judged: Sequence[Judged]) -> Calibration:
    """Of a group of runs; zeros for none."""
    errors = 100 * np.abs([each.error for each in judged] or [0.0])
    return Calibration(
        rows=len(judged),
        cases=len({each.run.case for each in judged}),
        median_pct=round(float(np.median(errors)), 1),
        p90_pct=round(float(np.percentile(errors, 90)), 1),
        largest_gib=round(max((each.measured for each in judged), default=1.0), 1),
    )


def groups(judged: Sequence[Judged]) -> dict[str, Calibration]:
    """MoE and dense apart, and every feature: the rows of `memory_calibration.csv`."""
    kinds: dict[str, Callable[[Judged], bool]] = {
        "MoE": lambda each: each.run.is_moe,
        "dense": lambda each: not each.run.is_moe,
    }
    found = {name: calibration([each for each in judged if holds(each)]) for name, holds in kinds.items()}
    return found | {name: calibration([each for each in judged if _has(each, name)]) for name in FEATURES}


def _has(each: Judged, feature: str) -> bool:
    assert each.run.recipe is not None
    return bool(np.any(FEATURES[feature](one(each.run.recipe))))


def coverage(judged: Sequence[Judged]) -> tuple[float, float]:
    """(share of runs that the bound holds for, how far above the measurement it is on average)."""
    ratios: Floats = np.array([each.upper / each.measured for each in judged])
    return float(np.mean(ratios >= 1)), float(np.mean(ratios) - 1)


def error_by_rank(runs: Iterable[GoldenRun]) -> dict[str, float]:
    """Median |error| of the peak of pipelined runs, in percent, if the first, the hottest or the last rank was
    measured."""
    pipelined = [_predicted(run) for run in runs if run.recipe and run.recipe.knob("pipeline_model_parallel_size") > 1]
    picks: dict[str, Callable[[Floats], float]] = {
        "first": lambda needs: float(needs[0]),
        "hottest": lambda needs: float(needs.max()),
        "last": lambda needs: float(needs[-1]),
    }
    found = {}
    for name, pick in picks.items():
        errors = [
            abs(pick(sum(each.table.by_part.values(), np.zeros(1))[0]) / (each.run.peak_bytes / GIB) - 1)
            for each in pipelined
        ]
        found[name] = 100 * float(np.median(errors))
    return found
