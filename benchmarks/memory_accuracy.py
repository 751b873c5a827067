"""Measures the memory estimate on measured runs: errors by part, the upper bound, and which rank was measured.

The constants fitted to resting memory or peaks are fitted again without each test case in turn, on all its platforms;
the others are counted from tensors of Megatron-Core and Transformer Engine and not fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.golden_runs import GoldenRun
from trainer.estimate.candidates import Floats, one
from trainer.estimate.held import held_parameters
from trainer.estimate.memory.bound import FEATURES, Calibration, unbalanced, widened
from trainer.estimate.memory.constants import constant
from trainer.estimate.memory.estimate import RESTING, MemoryTable, memory_of
from trainer.estimate.memory.state import step_bytes

GIB = 2.0**30
LARGE_GIB = 20.0
# excess over the median peak of the same recipe: runs with more are listed, and not used for fits or errors
CONTRADICTING = 0.2
SLACK = 0.95  # share of the small runs that the slack covers
COVERED = 0.98  # share of new cases whose worst run should be below the bound


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Measured rank of one run, GiB, predicted without the run's own test case."""

    run: GoldenRun
    resting: float
    peak: float
    upper: float

    @property
    def measured_gib(self) -> float:
        return self.run.peak_bytes / GIB

    @property
    def error(self) -> float:
        return self.peak / self.measured_gib - 1


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Constants fitted to these runs, with the names in `memory.csv`.

    `blas_workspace` and `slack` are GiB, `margin` is a fraction of the moving part, the others are loads over the mean.
    """

    blas_workspace: float
    slack: float = 0.0
    expected_imbalance: float = 1.0
    imbalance: float = 1.0
    margin: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Predicted:
    """Prediction for the measured rank, GiB, without cuBLAS workspaces and with a balanced load of experts."""

    run: GoldenRun
    resting: float
    after_step: float  # the optimizer's copy of its gradients, which stays until the next step starts
    moving: float
    routed: float  # 0 if an even load is forced
    widened: float  # share that the bound adds for features that were never measured

    def at_rest(self, fit: Fit) -> float:
        return self.resting + fit.blas_workspace + self.after_step

    def peak(self, fit: Fit) -> float:
        return self.resting + fit.blas_workspace + self.moves(fit)

    def upper(self, fit: Fit) -> float:
        uneven = max(0.0, fit.imbalance - fit.expected_imbalance) * self.routed
        slack = fit.slack if self.peak(fit) < constant("small") else 0.0
        resting = self.resting + fit.blas_workspace + slack
        spread = float(np.hypot(fit.margin * self.moves(fit), uneven))
        return (resting + self.moves(fit) + spread) * (1 + self.widened)

    def load(self, fit: Fit) -> float:
        """Returns the load of this rank's experts, over the mean, that would explain the whole error."""
        even = replace(fit, expected_imbalance=1.0)
        return 1 + (self.run.peak_bytes / GIB - self.peak(even)) / self.routed

    def short(self, fit: Fit) -> float:
        """Returns the GiB by which the bound is too low, without its allowance for unmeasured features."""
        return self.run.peak_bytes / GIB - self.upper(fit) / (1 + self.widened)

    def margin(self, fit: Fit) -> float:
        """Returns the margin at which the bound equals the measurement, without its allowance for unmeasured
        features."""
        even = replace(fit, imbalance=fit.expected_imbalance, margin=0.0)
        uneven = max(0.0, fit.imbalance - fit.expected_imbalance) * self.routed
        lacking = max(self.short(even), 0.0)
        return math.sqrt(max(lacking**2 - uneven**2, 0.0)) / self.moves(fit)

    def moves(self, fit: Fit) -> float:
        return self.moving + (fit.expected_imbalance - 1) * self.routed


def judge(runs: Iterable[GoldenRun], *, left_out: Callable[[GoldenRun], str] = lambda run: run.case) -> list[Judged]:
    """Predicts every run that has a recipe, with the constants fitted without its case, or without whatever else
    `left_out` names."""
    predicted = [_predicted(run) for run in runs if run.recipe]
    apart = contradicting([each.run for each in predicted])
    predicted = [each for each in predicted if each.run not in apart]
    found: list[Judged] = []
    for name in sorted({left_out(each.run) for each in predicted}):
        fit = fitted([each for each in predicted if left_out(each.run) != name])
        found += [
            Judged(run=each.run, resting=each.at_rest(fit), peak=each.peak(fit), upper=each.upper(fit))
            for each in predicted
            if left_out(each.run) == name
        ]
    return found


def fit_all(runs: Iterable[GoldenRun]) -> Fit:
    """Returns the constants for `memory.csv`, fitted to all runs."""
    known = [run for run in runs if run.recipe]
    apart = contradicting(known)
    return fitted([_predicted(run) for run in known if run not in apart])


def contradicting(runs: Sequence[GoldenRun]) -> list[GoldenRun]:
    """Returns the runs whose peak exceeds the median of the same recipe's by more than CONTRADICTING."""
    peaks: dict[str, list[float]] = {}
    for run in runs:
        peaks.setdefault(_digest(run), []).append(run.peak_bytes)
    return [run for run in runs if run.peak_bytes > (1 + CONTRADICTING) * float(np.median(peaks[_digest(run)]))]


def _digest(run: GoldenRun) -> str:
    assert run.recipe is not None
    return run.case + run.recipe.model_dump_json(include={"architecture", "training", "parallelism", "knobs"})


def fitted(runs: Sequence[_Predicted]) -> Fit:
    """Fits the constants to measured runs: workspaces to resting memory, the usual load to peaks of runs with experts,
    slack to small runs; the worst load and the margin to the worst run of each case, because runs of a case repeat each
    other."""
    workspaces = float(np.median([each.run.resting_bytes / GIB - each.resting - each.after_step for each in runs]))
    fit = Fit(blas_workspace=workspaces)
    uneven = [each for each in runs if each.routed]
    usual = max(1.0, float(np.median([each.load(fit) for each in uneven])))
    fit = replace(fit, expected_imbalance=usual, imbalance=max(usual, _worst(uneven, lambda each: each.load(fit))))
    small = [each.short(fit) for each in runs if each.peak(fit) < constant("small")]
    fit = replace(fit, slack=max(0.0, float(np.quantile(small, SLACK))))
    return replace(fit, margin=_worst(runs, lambda each: each.margin(fit)))


def _worst(runs: Sequence[_Predicted], of: Callable[[_Predicted], float]) -> float:
    """Returns the conformal quantile over cases: the worst run of a new case is below it with probability COVERED, or n
    / (n + 1) if n cases certify no more."""
    cases: dict[str, float] = {}
    for each in runs:
        cases[each.run.case] = max(of(each), cases.get(each.run.case, -np.inf))
    place = min(math.ceil((len(cases) + 1) * COVERED), len(cases))
    return sorted(cases.values())[place - 1]


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
        after_step=float(step_bytes(candidates, held_parameters(candidates))[0, -1]) / GIB,
        moving=_moving(parts),
        routed=routed,
        widened=float(widened(candidates, table.peak_gib)[0]),
    )


def _moving(parts: dict[str, float]) -> float:
    """Returns what the allocator counts in addition to the resting parts.

    A CUDA graph's memory is used only while it is captured, when neither loss nor eager activations are alive.
    """
    return max(parts["cuda_graphs"], parts["activations"] + parts["logits"] + parts["workspace"])


def calibration(judged: Sequence[Judged]) -> Calibration:
    """Returns the errors of a group of runs; an empty group has errors of 0."""
    errors = 100 * np.abs([each.error for each in judged] or [0.0])
    return Calibration(
        rows=len(judged),
        cases=len({each.run.case for each in judged}),
        median_pct=round(float(np.median(errors)), 1),
        p90_pct=round(float(np.percentile(errors, 90)), 1),
        largest_gib=round(max((each.measured_gib for each in judged), default=1.0), 1),
    )


def groups(judged: Sequence[Judged]) -> dict[str, Calibration]:
    """Returns the rows of `memory_calibration.csv`: MoE, dense, and one per feature."""
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
    """Returns (share of cases with all runs below the bound, median distance of the bound above the measurement)."""
    ratios: Floats = np.array([each.upper / each.measured_gib for each in judged])
    failing = {each.run.case for each, ratio in zip(judged, ratios, strict=True) if ratio < 1}
    return 1 - len(failing) / len({each.run.case for each in judged}), float(np.median(ratios) - 1)


def short(judged: Sequence[Judged]) -> float:
    """Returns the GiB by which the bound is too low in the worst run, 0 if it holds in all."""
    return max(0.0, *(each.measured_gib - each.upper for each in judged))


def error_by_rank(runs: Iterable[GoldenRun]) -> dict[str, float]:
    """Returns the median |error| of the peak of pipelined runs, in percent, by the rank assumed to be measured: first,
    hottest or last."""
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
