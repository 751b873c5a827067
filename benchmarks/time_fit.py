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

from benchmarks.places import table_rows
from benchmarks.published_runs import Run
from trainer.estimate.candidates import Floats
from trainer.measured.constants import Constant

HUBER = 0.10  # relative error above which the weight of a row decreases
PRIOR_SPREAD = 0.7  # standard deviation of a constant's logarithm around its prior
ROW_SPREAD = 0.08  # standard deviation of a run around the model
LOW_TRUST_WEIGHT = 0.25
PAIR_WEIGHT = 3.0  # weight of each side of a matched pair, which separates effects that whole recipes confound
STEPS = 12
FOLD_STEPS = 6
LONGEST_STEP = 0.4  # largest change of a logarithm in one step
SLOPE = 0.02  # change of a logarithm for numerical derivatives
CONVERGED = 3e-3  # change of a logarithm below which the fit has converged


# log tokens/s/GPU at each set of constants of every run, [K, runs]
Predict = Callable[[Sequence[Run], Sequence[Mapping[str, float]]], Floats]


class Fit:
    """Model of step time on a set of runs: residuals of log tokens/s for given constants."""

    def __init__(self, runs: Sequence[Run], *, rows: Sequence[Constant], predict: Predict) -> None:
        self.runs, self.rows, self.predict = runs, rows, predict
        self.measured = np.log([run.tokens_per_s_per_gpu for run in runs])
        self.trust = np.array(
            [PAIR_WEIGHT if run.matched else 1.0 if run.trusted else LOW_TRUST_WEIGHT for run in runs]
        )
        self.fitted = [row for row in rows if row.low is not None]
        self.prior = np.log([max(row.prior, 1e-6) for row in self.fitted])
        self.start = np.log([max(row.value, 1e-6) for row in self.fitted])
        self.low = np.log([max(row.low or 0.0, 1e-6) for row in self.fitted])
        self.high = np.log([row.high or 1.0 for row in self.fitted])

    def values(self, theta: Floats) -> dict[str, float]:
        fixed = {row.name: row.value for row in self.rows}
        return fixed | {row.name: float(np.exp(t)) for row, t in zip(self.fitted, theta, strict=True)}

    def errors(self, theta: Floats) -> Floats:
        """Returns log(predicted / measured), one per run."""
        found: Floats = self.errors_of([theta])[0]
        return found

    def errors_of(self, thetas: Sequence[Floats]) -> Floats:
        """Returns log(predicted / measured) for several sets of constants, [K, runs]."""
        predicted: Floats = self.predict(self.runs, [self.values(theta) for theta in thetas])
        return predicted - self.measured

    def slopes(self, theta: Floats, at: Floats) -> Floats:
        """Returns derivatives of the errors by the constants' logarithms, [runs, constants]."""
        steps = np.where(theta + SLOPE <= self.high, SLOPE, -SLOPE)
        moved = self.errors_of(list(theta + np.diag(steps)))
        columns: Floats = ((moved - at) / steps[:, None]).T
        return columns

    def solve(self, theta: Floats, keep: np.ndarray, *, steps: int) -> Floats:
        """Returns the logarithms of the constants that fit the runs of `keep`, from those in `theta`."""
        for _ in range(steps):
            errors = self.errors(theta)
            last, theta = theta, self.stepped(theta, keep, errors=errors, jacobian=self.slopes(theta, errors))
            if np.abs(theta - last).max() < CONVERGED:
                break
        return theta

    def stepped(self, theta: Floats, keep: np.ndarray, *, errors: Floats, jacobian: Floats) -> Floats:
        """Returns the logarithms of the constants after one Gauss-Newton step on the runs of `keep`."""
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
        return np.clip(theta + np.clip(step, -LONGEST_STEP, LONGEST_STEP), self.low, self.high)


class LinearizedFit(Fit):
    """Fit with errors linearized around a point, for a model that takes seconds per evaluation."""

    def __init__(self, fit: Fit, theta: Floats) -> None:
        super().__init__(fit.runs, rows=fit.rows, predict=fit.predict)
        self._theta, self._there = theta, fit.errors(theta)
        self._slopes = fit.slopes(theta, self._there)

    def errors_of(self, thetas: Sequence[Floats]) -> Floats:
        return self._there + (np.stack(thetas) - self._theta) @ self._slopes.T

    def slopes(self, theta: Floats, at: Floats) -> Floats:
        return self._slopes


def leave_one_cell_out(fit: Fit, theta: Floats, *, along: Fit | None = None) -> Floats:
    """Returns log(predicted / measured) of every run, from constants fitted without its cell.

    `along` is solved for the constants (None: `fit`); `fit` predicts with them.
    """
    along = along or fit
    kept = [np.array([run.cell != cell for run in fit.runs]) for cell in dict.fromkeys(run.cell for run in fit.runs)]
    slopes = along.slopes(theta, along.errors(theta))
    thetas = [theta for _ in kept]
    for _ in range(FOLD_STEPS):
        each = zip(thetas, kept, along.errors_of(thetas), strict=True)
        thetas = [along.stepped(now, keep, errors=errors, jacobian=slopes) for now, keep, errors in each]
    errors = np.zeros(len(fit.runs))
    for keep, without in zip(kept, thetas, strict=True):
        left_out = [run for run, inside in zip(fit.runs, keep, strict=True) if not inside]
        errors[~keep] = fit.predict(left_out, [fit.values(without)])[0] - fit.measured[~keep]
    return errors


def write_constants(path: Path, values: Mapping[str, float]) -> None:
    """Writes fitted values, by name, into the table of constants."""
    rows = table_rows(path)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in sorted(rows, key=lambda row: row["name"]):
            fitted = row["low"] and row["name"] in values
            writer.writerow(row | ({"value": f"{values[row['name']]:.4g}"} if fitted else {}))
