"""Measures the step-time estimate on published runs of models and GPUs it was not fitted to: every cell (a model on a
GPU) is predicted from constants fitted to the other cells. The baseline has one parameter per GPU family and precision,
a constant share of the peak, also fitted without the cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from benchmarks.published_runs import Run, cells, contradicting
from benchmarks.time_fit import STEPS, Fit, leave_one_cell_out
from trainer.estimate.candidates import Candidates, Flags, Floats, one, table
from trainer.estimate.time.bound import TIME_FEATURES, TimeCalibration
from trainer.estimate.time.constants import constant_table
from trainer.estimate.time.estimate import stages_of, tokens_per_s_per_gpu
from trainer.measured.constants import Constant
from trainer.model.flops import model_flops_per_token
from trainer.recipe.knobs import KNOBS

FAMILIES = ("MoE", "hybrid", "dense")
SEVERAL = 3  # least number of different configurations for a rank correlation


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Relative errors of predicted tokens/s/GPU (equal to those of TFLOPS/GPU), and the rank correlation within
    cells."""

    rows: int
    median: float
    p90: float
    bias: float
    rank_correlation: float | None  # mean over cells with several configurations


def accuracy(runs: Sequence[Run], errors: Floats) -> Accuracy:
    """Summarizes the errors of runs; `errors`: log(predicted / measured), one per run."""
    relative = np.expm1(errors)
    ranks = [rank for _, rank in rank_correlations(runs, errors)]
    return Accuracy(
        rows=len(runs),
        median=float(np.median(np.abs(relative))),
        p90=float(np.quantile(np.abs(relative), 0.9)),
        bias=float(np.median(relative)),
        rank_correlation=float(np.mean(ranks)) if ranks else None,
    )


def rank_correlations(runs: Sequence[Run], errors: Floats) -> list[tuple[str, float]]:
    """Returns Spearman's coefficient of predicted and measured throughput in each cell with several configurations.

    Runs of one configuration on several releases are one point, their geometric mean.
    """
    at = {run.row: index for index, run in enumerate(runs)}
    found = []
    for cell, members in cells(list(runs)):
        points: dict[str, list[tuple[float, float]]] = {}
        for run in members:
            measured = float(np.log(run.model_tflops_per_gpu))
            points.setdefault(run.recipe.digest(), []).append((measured, measured + float(errors[at[run.row]])))
        if len(points) < SEVERAL:
            continue
        means = np.array([np.mean(pairs, axis=0) for pairs in points.values()])
        found.append((cell, spearman(means[:, 0], means[:, 1])))
    return found


def pair_spread(runs: Sequence[Run], errors: Floats) -> tuple[int, float]:
    """Returns (pairs, 90th percentile of the relative errors of their ratios), of all runs of two recipes in one
    cell."""
    at = {run.row: index for index, run in enumerate(runs)}
    apart = [
        abs(np.expm1(errors[at[first.row]] - errors[at[second.row]]))
        for _, members in cells(list(runs))
        for first, second in combinations(members, 2)
        if first.recipe.digest() != second.recipe.digest()
    ]
    return len(apart), float(np.quantile(apart, 0.9))


def spearman(a: Floats, b: Floats) -> float:
    """Returns Spearman's coefficient; 0 if all values of one side are equal."""
    ranks_a, ranks_b = (_ranks(values) - _ranks(values).mean() for values in (a, b))
    norm = np.sqrt((ranks_a**2).sum() * (ranks_b**2).sum())
    return float((ranks_a * ranks_b).sum() / norm) if norm else 0.0


def _ranks(values: Floats) -> Floats:
    """Returns the ranks; ties share their mean."""
    order = np.sort(values)
    return (np.searchsorted(order, values, "left") + np.searchsorted(order, values, "right") - 1) / 2


class Estimates:
    """Predicts runs by the estimate; runs of one model, cluster and release form one table of candidates, built
    once."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, ...], list[tuple[list[int], str, Candidates]]] = {}

    def __call__(self, runs: Sequence[Run], sets: Sequence[Mapping[str, float]]) -> Floats:
        """Returns log tokens/s/GPU of every run for each set of constants, [K, runs]."""
        key = tuple(run.row for run in runs)
        if key not in self._tables:
            self._tables[key] = list(_tables(runs))
        found = np.zeros((len(sets), len(runs)))
        constants = {name: np.array([[each[name]] for each in sets]) for name in sets[0]}
        for rows, release, candidates in self._tables[key]:
            step_s = stages_of(candidates, release=release, constants=constants).step
            found[:, rows] = np.log(tokens_per_s_per_gpu(candidates, step_s))
        return found


def _tables(runs: Sequence[Run]) -> Iterator[tuple[list[int], str, Candidates]]:
    """Yields (indices of its runs, release, candidates) of every table."""
    members: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        key = run.recipe.architecture.model_dump_json(), run.recipe.cluster.model_dump_json(), run.release
        members[key].append(index)
    for (_, _, release), rows in members.items():
        recipes = [runs[row].recipe for row in rows]
        varied = [name for name in KNOBS if len({recipe.knob(name) for recipe in recipes}) > 1]
        yield rows, release, table(recipes[0], {name: [recipe.knob(name) for recipe in recipes] for name in varied})


def baseline(runs: Sequence[Run]) -> Floats:
    """Returns log(predicted / measured) of a constant share of the peak per GPU family and precision, fitted without
    the cell; of the share of all other cells if none of them has that family and precision."""
    share = np.array([_share_of_peak(run) for run in runs])
    errors = np.zeros(len(runs))
    kinds = [(run.recipe.hardware.architecture, run.recipe.training.precision) for run in runs]
    for index, run in enumerate(runs):
        others = [i for i, other in enumerate(runs) if kinds[i] == kinds[index] and other.cell != run.cell]
        others = others or [i for i, other in enumerate(runs) if other.cell != run.cell]
        errors[index] = np.log(np.median(share[others]) / share[index])
    return errors


def _share_of_peak(run: Run) -> float:
    per_token = model_flops_per_token(run.recipe.architecture, run.recipe.training.seq_length) / 1e12
    return run.tokens_per_s_per_gpu * per_token / (run.recipe.peak_tflops or 1.0)


@dataclass(frozen=True, kw_only=True)
class JudgedRuns:
    """Published runs and their errors, log(predicted / measured), with constants fitted without their cell and with
    those fitted to all. `values` are the fitted constants, `apart` the runs that contradict others and are not fitted,
    `pairs` matched measurements."""

    runs: list[Run]
    held_out: Floats
    fitted: Floats
    table: Floats  # errors with the constants that estimates use now
    values: Mapping[str, float]
    apart: list[Run]
    apart_errors: Floats
    pairs: list[Run]
    pair_errors: Floats


def judge_runs(runs: Sequence[Run], pairs: Sequence[Run]) -> JudgedRuns:
    """Fits and judges the constants.

    Those of scans are fitted to hybrid models, with the others fixed at their fit to models without scans.
    """
    apart, predict, table = contradicting(runs), Estimates(), constant_table()
    rest = [run for run in runs if run not in apart]
    plain, hybrids = ([run for run in rest if (run.family == "hybrid") is wanted] for wanted in (False, True))
    scans = {name for name in table if name.startswith("scan_")}
    fit = Fit([*plain, *pairs], rows=[_only(row, row.name not in scans) for row in table.values()], predict=predict)
    theta = fit.solve(fit.start, np.ones(len(fit.runs)), steps=STEPS)
    found, errors, count = fit.values(theta), fit.errors(theta), len(plain)
    rows = [replace(_only(row, row.name in scans), value=found[row.name]) for row in table.values()]
    own = Fit(hybrids, rows=rows, predict=predict)
    scanned = own.solve(own.start, np.ones(len(hybrids)), steps=STEPS)
    values = own.values(scanned)
    return JudgedRuns(
        runs=[*plain, *hybrids],
        held_out=np.concatenate([leave_one_cell_out(fit, theta)[:count], leave_one_cell_out(own, scanned)]),
        fitted=np.concatenate([errors[:count], own.errors(scanned)]),
        table=_errors([*plain, *hybrids], {name: row.value for name, row in table.items()}, predict),
        values=values,
        apart=apart,
        apart_errors=_errors(apart, values, predict),
        pairs=list(pairs),
        pair_errors=errors[count:],
    )


def _only(row: Constant, fitted: bool) -> Constant:
    return row if fitted else replace(row, low=None, high=None)


def _errors(runs: Sequence[Run], values: Mapping[str, float], predict: Estimates) -> Floats:
    errors: Floats = predict(runs, [values])[0] - np.log([run.tokens_per_s_per_gpu for run in runs])
    return errors


NOMINAL = 90  # percent of runs that an interval should hold


def coverage(runs: Sequence[Run], errors: Floats, kept: Flags) -> float:
    """Returns the share of the `kept` runs whose error is within percentile NOMINAL of the errors of their family's
    other cells."""
    held = []
    for index in map(int, np.flatnonzero(kept)):
        run = runs[index]
        others = [i for i, each in enumerate(runs) if each.family == run.family and each.cell != run.cell]
        width = np.percentile(np.abs(np.expm1(errors[others])), NOMINAL)
        held.append(abs(np.expm1(errors[index])) <= width)
    return float(np.mean(held))


def groups(runs: Sequence[Run], errors: Floats) -> dict[str, TimeCalibration]:
    """Returns the errors of every group of runs that an estimate quotes: all, each of FAMILIES, and one per feature."""
    tables = [one(run.recipe) for run in runs]
    members = {
        "all": [True] * len(runs),
        **{name: [run.family == name for run in runs] for name in FAMILIES},
    } | {name: [bool(np.any(has(table))) for table in tables] for name, has in TIME_FEATURES.items()}
    return {name: _calibration(runs, errors, np.array(inside)) for name, inside in members.items()}


def _calibration(runs: Sequence[Run], errors: Floats, inside: Flags) -> TimeCalibration:
    chosen = [run for run, kept in zip(runs, inside, strict=True) if kept]
    relative = 100 * np.abs(np.expm1(errors[inside]))
    return TimeCalibration(
        rows=len(chosen),
        cells=len({run.cell for run in chosen}),
        median_pct=round(float(np.median(relative)), 1) if chosen else 0.0,
        p90_pct=round(float(np.quantile(relative, 0.9)), 1) if chosen else 0.0,
        longest=max((float(run.recipe.training.seq_length) for run in chosen), default=0.0),
        ranks=max((float(run.recipe.world_size) for run in chosen), default=0.0),
    )
