"""The closed form at the measured recipes of one cluster, and their measurements: steps, traced parts and CPU time.

Both are whitened by the covariance of the measurements, so that a least-squares fit of the factors (`time.py`) weighs
similar recipes together. Shapes: M measurements, K sets of constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from policies.constants import constant
from policies.surrogate.evidence import PARTS, Evidence, by_size, merge_cpu_parts
from policies.surrogate.kernel import covariance, features, kernel
from policies.surrogate.step_parts import PART_DEVIATION, PART_DEVIATIONS, parts_at, work_of
from trainer.estimate.candidates import Candidates, Floats, Integers, tabulate
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.constants import constants as fitted
from trainer.estimate.time.estimate import stages_of
from trainer.estimate.time.layer_time import imbalance

PART_NOISE = constant("part_noise")
WORK_DEVIATION, WORK_NOISE = constant("work_deviation"), constant("work_noise")
STAGE_CORRELATION = constant("stage_correlation")
PART_FLOOR = constant("part_floor")
RESIDUAL_DEVIATION = {
    False: constant("residual_deviation_gpu"),
    True: constant("residual_deviation_cpu"),
}  # key: on CPUs
PROXY_PREFIX = "of proxies: "  # prefix of the names of factors and constants that apply to proxies only


def noise_of(measured: Sequence[Evidence]) -> Floats:
    return np.array([each.deviation for each in measured])


def on_cpu(measured: Sequence[Evidence]) -> bool:
    return any(each.recipe.hardware.is_cpu for each in measured)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The measured recipes of one size as a table, and their traced ranks: the row and the pipeline rank of each, and
    the rows whose CPU time was measured."""

    candidates: Candidates
    are_proxies: bool
    rows: Integers
    stages: Integers
    worked: Integers

    def own(self, constants: Constants) -> Constants:
        """Returns the constants for this table: those of proxies if its recipes are proxies."""
        of_proxies = {n.removeprefix(PROXY_PREFIX): v for n, v in constants.items() if n.startswith(PROXY_PREFIX)}
        return (
            of_proxies if self.are_proxies else {n: v for n, v in constants.items() if not n.startswith(PROXY_PREFIX)}
        )


def _table(group: Sequence[Evidence]) -> _Table:
    traced = [(row, rank.pipeline_rank) for row, each in enumerate(group) for rank in each.ranks]
    return _Table(
        candidates=tabulate([each.recipe for each in group]),
        are_proxies=group[0].is_proxy,
        rows=np.array([row for row, _ in traced], dtype=np.int64),
        stages=np.array([stage for _, stage in traced], dtype=np.int64),
        worked=np.array([row for row, each in enumerate(group) if each.work_s], dtype=np.int64),
    )


class MeasuredForm:
    """The closed form at the measured recipes, and the measurements, each group of figures whitened by its covariance.

    Whitening makes several measurements of similar recipes count little more than one. `measured` is grouped by the
    size of what ran: recipes of one size share a table.
    """

    def __init__(self, evidence: Sequence[Evidence]) -> None:
        groups = by_size(evidence)
        self.measured = measured = tuple(each for group in groups for each in group)
        self.tables = [_table(group) for group in groups]
        self.hardware = measured[0].recipe.hardware
        self.steps = steps = np.array([each.step_s or np.nan for each in measured])
        traced = [(row, rank) for row, each in enumerate(measured) for rank in each.ranks]
        self.rows = np.array([row for row, _ in traced], dtype=np.int64)
        self.stages = np.array([rank.pipeline_rank for _, rank in traced], dtype=np.int64)
        self.floor = PART_FLOOR * steps[self.rows]
        self.where = np.concatenate([features(table.candidates) for table in self.tables])
        correlation = kernel(self.where, self.where)
        self.step_root = cholesky(
            covariance(correlation, RESIDUAL_DEVIATION[on_cpu(measured)], noise_of(measured)), lower=True
        )
        other = np.where(self.stages[:, None] == self.stages[None, :], 1.0, STAGE_CORRELATION)
        together = correlation[np.ix_(self.rows, self.rows)] * other
        scatter = np.array([each.scatter for each in measured])[self.rows] / PART_DEVIATION
        self.part_root = cholesky(covariance(together, 1.0, np.hypot(PART_NOISE, scatter)), lower=True)
        self.worked = np.array([row for row, each in enumerate(measured) if each.work_s], dtype=np.int64)
        working = covariance(
            correlation[np.ix_(self.worked, self.worked)], WORK_DEVIATION, np.full(len(self.worked), WORK_NOISE)
        )
        self.work_root = cholesky(working, lower=True)
        self.work = np.array([each.work_s for each in measured if each.work_s])
        self.deviations = np.array([PART_DEVIATIONS.get(name, PART_DEVIATION) for name in PARTS])
        parts = {n: np.array([rank.seconds[n] for _, rank in traced]) for n in PARTS}
        self.observed = self._whitened(steps, parts, self.work)

    def predicted(self, constants: Constants) -> Floats:
        """Returns the whitened prediction of each measurement: [M], or [K, M] for K sets of constants."""
        figures = (self._figures(table, table.own(constants)) for table in self.tables)
        steps, parts, work = zip(*figures, strict=True)
        by_part = {name: _joined([each[name] for each in parts]) for name in PARTS}
        return self._whitened(_joined(steps), by_part, _joined(work))

    def steps_at(self, constants: Constants) -> Floats:
        """Returns the closed form's seconds per step, [M]."""
        steps = [stages_of(table.candidates, constants=table.own(constants)).step for table in self.tables]
        return np.concatenate(steps)

    def _figures(self, table: _Table, constants: Constants) -> tuple[Floats, dict[str, Floats], Floats]:
        """Returns (seconds per step, seconds of PARTS by traced rank, CPU seconds) of one table."""
        stages, values = stages_of(table.candidates, constants=constants), {**fitted(), **constants}
        load = np.broadcast_to(imbalance(table.candidates, values), stages.step.shape)
        parts = parts_at(stages, table.rows, table.stages, load=load[..., table.rows])
        parts = merge_cpu_parts(parts) if self.hardware.is_cpu else parts
        return stages.step, parts, work_of(stages, moved=values["cpu_moved"])[..., table.worked]

    def _whitened(self, steps: Floats, parts: dict[str, Floats], work: Floats) -> Floats:
        logs = np.log(np.maximum(np.stack([parts[name] for name in PARTS], axis=-2), 0.0) + self.floor)
        by_part = _solved(self.part_root, logs / self.deviations[:, None])
        whole, working = _solved(self.step_root, np.log(steps)), _solved(self.work_root, np.log(work))
        return np.concatenate([whole, working, by_part.reshape(*by_part.shape[:-2], -1)], axis=-1)


def _joined(tables: Sequence[Floats]) -> Floats:
    """Concatenates the figures of several tables, [M] or [K, M].

    Tables that no constant of the K sets affects have no axis K, and get one.
    """
    sets = np.broadcast_shapes(*(each.shape[:-1] for each in tables))
    return np.concatenate([np.broadcast_to(each, (*sets, each.shape[-1])) for each in tables], axis=-1)


def _solved(root: Floats, figures: Floats) -> Floats:
    """Returns the solution x of `root` x = figures, [.., M]; `root` is lower triangular, [M, M]."""
    rows = figures.reshape(math.prod(figures.shape[:-1]), figures.shape[-1])
    solved: Floats = solve_triangular(root, rows.T, lower=True).T
    return solved.reshape(figures.shape)
