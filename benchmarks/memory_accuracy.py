"""How good the memory estimate is, on measured runs: errors by part, the bound, and which rank was measured.

The constants that resting memory or peaks fixed are fitted again without each test case in turn, whatever its
platforms; the others are counted from Megatron-Core's and Transformer Engine's tensors and fitted to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.golden_runs import GoldenRun
from trainer.estimate.candidates import Floats, one
from trainer.estimate.memory.bound import FEATURES, Calibration, margin, unbalanced
from trainer.estimate.memory.constants import constant
from trainer.estimate.memory.estimate import MemoryTable, memory_of

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
class Fit:
    """The constants that these runs fixed, `memory.csv`'s names. `margin` is a share, `blas_workspace` GiB."""

    blas_workspace: float
    expected_imbalance: float
    margin: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Predicted:
    """GiB of the measured rank, without torch's own workspaces and with an even load of experts."""

    run: GoldenRun
    resting: float
    moving: float
    routed: float  # where nothing forces an even load
    widened: float  # share that the bound adds for what was never measured

    def peak(self, fit: Fit) -> float:
        return self.resting + fit.blas_workspace + self.moving + (fit.expected_imbalance - 1) * self.routed

    def upper(self, fit: Fit) -> float:
        worst = self.peak(fit) + (constant("imbalance") - fit.expected_imbalance) * self.routed
        return worst * (1 + fit.margin + self.widened)


def judge(runs: Iterable[GoldenRun]) -> list[Judged]:
    """Every run that has a recipe, by leave-one-case-out."""
    predicted = [_predicted(run) for run in runs if run.recipe]
    found = []
    for case in sorted({each.run.case for each in predicted}):
        fit = fitted([each for each in predicted if each.run.case != case])
        found += [
            Judged(run=each.run, resting=each.resting + fit.blas_workspace, peak=each.peak(fit), upper=each.upper(fit))
            for each in predicted
            if each.run.case == case
        ]
    return found


def fit_all(runs: Iterable[GoldenRun]) -> Fit:
    """What `memory.csv` is to hold."""
    return fitted([_predicted(run) for run in runs if run.recipe])


def fitted(runs: Sequence[_Predicted]) -> Fit:
    """Workspaces by resting memory, the load by peaks of experts' runs, both medians; the margin covers the peaks."""
    small = float(np.median([each.run.resting_bytes / GIB - each.resting for each in runs]))
    even = Fit(blas_workspace=small, expected_imbalance=1.0)
    short = [(each.run.peak_bytes / GIB - each.peak(even)) / each.routed for each in runs if each.routed]
    uneven = Fit(blas_workspace=small, expected_imbalance=1 + max(0.0, float(np.median(short))))
    over = [each.run.peak_bytes / GIB / each.upper(uneven) - 1 for each in runs]
    return replace(uneven, margin=max(0.0, float(np.quantile(over, COVERED))))


def _predicted(run: GoldenRun) -> _Predicted:
    assert run.recipe is not None
    candidates = one(run.recipe)
    table = memory_of(candidates)
    parts = {name: float(sizes[0, -1]) for name, sizes in table.by_part.items()}
    uneven = bool(unbalanced(candidates).any())
    routed = float(table.routed_gib[0, -1]) * uneven
    parts["activations"] -= (constant("expected_imbalance") - 1) * routed
    return _Predicted(
        run=run,
        resting=sum(parts[name] for name in RESTING) - constant("blas_workspace") / 1024,
        moving=_moving(parts),
        routed=routed,
        widened=float(margin(candidates, table.peak_gib)[0]) - constant("margin"),
    )


def _moving(parts: dict[str, float]) -> float:
    """What the allocator counts beside the resting parts: what a graph owns only while it is captured, and then
    neither loss nor eager activations live."""
    return max(parts["cuda_graphs"], parts["activations"] + parts["logits"] + parts["workspace"])


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
    pipelined = [run for run in runs if run.recipe and run.recipe.knob("pipeline_model_parallel_size") > 1]
    needs = [sum(_table(run).by_part.values(), np.zeros(1))[0] for run in pipelined]
    measured = np.array([run.peak_bytes / GIB for run in pipelined])
    picks: dict[str, Callable[[Floats], float]] = {
        "first": lambda need: float(need[0]),
        "hottest": lambda need: float(need.max()),
        "last": lambda need: float(need[-1]),
    }
    return {
        name: 100 * float(np.median(np.abs(np.array([pick(need) for need in needs]) / measured - 1)))
        for name, pick in picks.items()
    }


def _table(run: GoldenRun) -> MemoryTable:
    assert run.recipe is not None
    return memory_of(one(run.recipe))
