"""Fits the constants of a model of step time to published runs: least squares of log tokens/s, regularised to the
priors.

Gauss-Newton on the logarithms of the constants, with Huber weights (a few published rows contradict their
neighbours) and bounds. `leave_one_cell_out` predicts every cell from the constants fitted without it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.published_runs import Run
from trainer.estimate.candidates import Floats
from trainer.measured.constants import Constant

HUBER = 0.10  # relative error from which on a row's weight falls
PRIOR_SPREAD = 0.7  # of a constant's logarithm around its prior
ROW_SPREAD = 0.08  # of a run around the model
LOW_TRUST_WEIGHT = 0.25
STEPS = 12
FOLD_STEPS = 6
LONGEST_STEP = 0.4  # of a logarithm
SLOPE = 0.02


# log tokens/s/GPU at each set of constants of every run, [K, runs]
Predict = Callable[[Sequence[Run], Sequence[Mapping[str, float]]], Floats]


class Fit:
    """A model of step time on a set of runs: residuals of log tokens/s at given constants."""

    def __init__(self, runs: Sequence[Run], *, rows: Sequence[Constant], predict: Predict) -> None:
        self.runs, self.rows, self.predict = runs, rows, predict
        self.measured = np.log([run.tokens_per_s_per_gpu for run in runs])
        self.trust = np.array([1.0 if run.trusted else LOW_TRUST_WEIGHT for run in runs])
        self.fitted = [row for row in rows if row.low is not None]
        self.prior = np.log([max(row.prior, 1e-6) for row in self.fitted])
        self.start = np.log([max(row.value, 1e-6) for row in self.fitted])
        self.low = np.log([max(row.low or 0.0, 1e-6) for row in self.fitted])
        self.high = np.log([row.high or 1.0 for row in self.fitted])

    def values(self, theta: Floats) -> Mapping[str, float]:
        fixed = {row.name: row.value for row in self.rows}
        return fixed | {row.name: float(np.exp(t)) for row, t in zip(self.fitted, theta, strict=True)}

    def errors(self, theta: Floats) -> Floats:
        """Returns log(predicted / measured), one per run."""
        return self.errors_of([theta])[0]

    def errors_of(self, thetas: Sequence[Floats]) -> Floats:
        """Returns the same at several sets of constants, [K, runs]."""
        return self.predict(self.runs, [self.values(theta) for theta in thetas]) - self.measured

    def slopes(self, theta: Floats, at: Floats) -> Floats:
        """Returns derivatives of the errors by the constants' logarithms, [runs, constants]."""
        steps = np.where(theta + SLOPE <= self.high, SLOPE, -SLOPE)
        moved = self.errors_of(list(theta + np.diag(steps)))
        return ((moved - at) / steps[:, None]).T

    def solve(self, theta: Floats, keep: np.ndarray, *, steps: int, slopes: Floats | None = None) -> Floats:
        """Returns the constants that fit the runs of `keep`; `slopes` keeps the derivatives fixed over all steps."""
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


class Straight(Fit):
    """A fit whose errors are linearised around a point: for a model that takes seconds per evaluation."""

    def __init__(self, fit: Fit, theta: Floats) -> None:
        super().__init__(fit.runs, rows=fit.rows, predict=fit.predict)
        self._theta, self._there = theta, fit.errors(theta)
        self._slopes = fit.slopes(theta, self._there)

    def errors(self, theta: Floats) -> Floats:
        return self._there + self._slopes @ (theta - self._theta)

    def slopes(self, theta: Floats, at: Floats) -> Floats:
        return self._slopes


def leave_one_cell_out(fit: Fit, theta: Floats, *, along: Fit | None = None) -> Floats:
    """Returns log(predicted / measured) of every run, from constants fitted without its cell; `along`: the fit to
    solve."""
    along = along or fit
    errors = np.zeros(len(fit.runs))
    slopes = along.slopes(theta, along.errors(theta))
    for cell in dict.fromkeys(run.cell for run in fit.runs):
        inside = np.array([run.cell == cell for run in fit.runs])
        without = along.solve(theta, ~inside, steps=FOLD_STEPS, slopes=slopes)
        left_out = [run for run in fit.runs if run.cell == cell]
        errors[inside] = fit.predict(left_out, [fit.values(without)])[0] - fit.measured[inside]
    return errors


def write_constants(path: Path, fit: Fit, theta: Floats) -> None:
    """Writes the fitted values into the table of constants."""
    values = {row.name: float(np.exp(t)) for row, t in zip(fit.fitted, theta, strict=True)}
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in sorted(rows, key=lambda row: row["name"]):
            writer.writerow(row | ({"value": f"{values[row['name']]:.4g}"} if row["name"] in values else {}))
