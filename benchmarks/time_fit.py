"""Fits the constants of the step-time model to published runs: least squares of log tokens/s, drawn to the priors.

Gauss-Newton on the logarithms of the constants, with Huber weights (a few published rows contradict their neighbours)
and bounds. `leave_one_cell_out` predicts every cell from the constants fitted without it.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.published_runs import Run
from trainer.estimate.candidates import Candidates, Floats, table
from trainer.estimate.time.constants import constant_table
from trainer.estimate.time.estimate import time_of
from trainer.recipe.knobs import KNOBS

HUBER = 0.10  # relative error beyond which a row pulls no harder
PRIOR_SPREAD = 0.7  # of a constant's logarithm around its prior
ROW_SPREAD = 0.08  # of a run around the model
LOW_TRUST_WEIGHT = 0.25
STEPS = 12
FOLD_STEPS = 6
LONGEST_STEP = 0.4  # of a logarithm
SLOPE = 0.02


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Runs of one model on one cluster and release, as one table."""

    rows: list[int]
    candidates: Candidates
    release: str


class Fit:
    """The model on a set of runs: residuals of log tokens/s at given constants."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.groups = _grouped(runs)
        self.measured = np.log([run.tokens_per_s_per_gpu for run in runs])
        self.trust = np.array([1.0 if run.trusted else LOW_TRUST_WEIGHT for run in runs])
        self.fitted = [row for row in constant_table().values() if row.low is not None]
        self.prior = np.log([max(row.prior, 1e-6) for row in self.fitted])
        self.start = np.log([max(row.value, 1e-6) for row in self.fitted])
        self.low = np.log([max(row.low or 0.0, 1e-6) for row in self.fitted])
        self.high = np.log([row.high or 1.0 for row in self.fitted])

    def values(self, theta: Floats) -> Mapping[str, float]:
        fixed = {name: row.value for name, row in constant_table().items()}
        return fixed | {row.name: float(np.exp(t)) for row, t in zip(self.fitted, theta, strict=True)}

    def errors(self, theta: Floats) -> Floats:
        """log(predicted / measured), a run each."""
        values, found = self.values(theta), np.zeros(len(self.runs))
        for group in self.groups:
            found[group.rows] = np.log(
                time_of(group.candidates, release=group.release, constants=values).tokens_per_s_per_gpu
            )
        return found - self.measured

    def slopes(self, theta: Floats, at: Floats) -> Floats:
        """[runs, constants]"""
        columns = []
        for index in range(len(theta)):
            moved = theta.copy()
            moved[index] += SLOPE if moved[index] + SLOPE <= self.high[index] else -SLOPE
            columns.append((self.errors(moved) - at) / (moved[index] - theta[index]))
        return np.stack(columns, axis=1)

    def solve(self, theta: Floats, keep: np.ndarray, *, steps: int, slopes: Floats | None = None) -> Floats:
        """Constants that fit the runs of `keep`; `slopes` holds them fixed over all steps."""
        for _ in range(steps):
            errors = self.errors(theta)
            jacobian = self.slopes(theta, errors) if slopes is None else slopes
            weights = keep * self.trust * np.minimum(1.0, HUBER / np.maximum(np.abs(errors), 1e-9)) / ROW_SPREAD**2
            normal = jacobian.T @ (weights[:, None] * jacobian) + np.eye(len(theta)) / PRIOR_SPREAD**2
            pull = -jacobian.T @ (weights * errors) - (theta - self.prior) / PRIOR_SPREAD**2
            free = np.ones(len(theta), dtype=bool)
            for _ in range(len(theta)):  # constants at a bound that would leave it stay there
                step = np.zeros(len(theta))
                step[free] = np.linalg.solve(normal[np.ix_(free, free)], pull[free])
                out = free & (((theta <= self.low) & (step < 0)) | ((theta >= self.high) & (step > 0)))
                if not out.any():
                    break
                free &= ~out
            theta = np.clip(theta + np.clip(step, -LONGEST_STEP, LONGEST_STEP), self.low, self.high)
            if np.abs(step).max() < 3e-3:
                break
        return theta


def _grouped(runs: Sequence[Run]) -> list[_Group]:
    members: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        members[run.recipe.architecture.model_dump_json(), run.recipe.cluster.model_dump_json(), run.release].append(
            index
        )
    groups = []
    for (_, _, release), rows in members.items():
        recipes = [runs[row].recipe for row in rows]
        varied = [name for name in KNOBS if len({recipe.knob(name) for recipe in recipes}) > 1]
        columns = {name: [recipe.knob(name) for recipe in recipes] for name in varied}
        groups.append(_Group(rows=rows, candidates=table(recipes[0], columns), release=release))
    return groups


def leave_one_cell_out(fit: Fit, theta: Floats) -> Floats:
    """log(predicted / measured) of every run, from the constants fitted without its cell."""
    errors = np.zeros(len(fit.runs))
    slopes = fit.slopes(theta, fit.errors(theta))
    for cell in dict.fromkeys(run.cell for run in fit.runs):
        inside = np.array([run.cell == cell for run in fit.runs])
        without = fit.solve(theta, ~inside, steps=FOLD_STEPS, slopes=slopes)
        errors[inside] = fit.errors(without)[inside]
    return errors


def write_constants(path: Path, fit: Fit, theta: Floats) -> None:
    """The table of constants with the fitted values in place."""
    values = {row.name: float(np.exp(t)) for row, t in zip(fit.fitted, theta, strict=True)}
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in sorted(rows, key=lambda row: row["name"]):
            writer.writerow(row | ({"value": f"{values[row['name']]:.4g}"} if row["name"] in values else {}))
