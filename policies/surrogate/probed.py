"""Conditions the prior of a cluster's factors on a probe, before any burst.

    log measured(row) = log closed form(row; constants moved by θ) + offset(kind) + error(kind) + error(row)

`probed.csv` has offset and both deviations of each kind of row. θ is the maximum a posteriori under the prior, its
covariance Laplace's, which keeps the correlation of factors that rows only determine together (the rate of a grouped
GEMM and the number of rows at which it is reached). Shapes: R rows, F factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from policies.surrogate.factors import factors, move_constants
from policies.surrogate.time import Prior, slopes_of
from trainer.estimate.candidates import Floats
from trainer.estimate.probe import Expected
from trainer.estimate.time.constants import Constants
from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe
from trainer.recipe.tables import figure, read_table

ROUNDS = 6
TABLE = "probed.csv"
MIN_INFORMING_SLOPE = 0.02  # change of a row's log per unit of a factor; a row with less does not inform the factor


@dataclass(frozen=True, kw_only=True)
class RowError:
    """Log error of one kind of probe row, as a measurement of the same work in a layer.

    `published` is the log ratio of measured to closed form on the published simulated cluster, the mean of its GPUs;
    `offset` is subtracted from the measured log. Standard deviations: `own` of each row; `shared` of all rows of the
    kind, in a simulation; `real` the same on real ranks, where plain kernels replace Megatron-Core's.
    """

    published: float
    offset: float
    shared: float
    own: float
    real: float


@cache
def row_errors() -> dict[str, RowError]:
    """Returns the errors of each kind of row that the surrogate learns from, by kind (`probed.csv`)."""
    return {
        row["kind"]: RowError(**{field.name: figure(row, field.name, table=TABLE) for field in fields(RowError)})
        for row in read_table(TABLE, package="policies.surrogate")
    }


def with_probe(prior: Prior, rows: Sequence[Row], recipe: Recipe) -> Prior:
    """Returns the prior conditioned on the probe's rows; unchanged if no row informs a factor."""
    form = _Form(rows, recipe)
    if not len(form.observed):
        return prior
    mean, inverse = prior.mean.copy(), np.linalg.inv(prior.covariance)
    every, curvature = factors(), inverse
    for _ in range(ROUNDS):
        theta = dict(zip((factor.name for factor in every), mean.tolist(), strict=True))
        now = form.predicted(move_constants(theta))
        slopes = slopes_of(form.predicted, [factor.name for factor in every], theta, now)
        curvature = slopes.T @ slopes + inverse
        step = np.linalg.solve(curvature, slopes.T @ (form.observed - now) - inverse @ (mean - prior.mean))
        mean = mean + step
    return Prior(mean=mean, covariance=np.asarray(np.linalg.inv(curvature), np.float64))


@dataclass(frozen=True, kw_only=True)
class ExpectedRow:
    """Expected value of a row, in its unit (None: unknown), by the closed form on the published simulated cluster; and
    the factors that the row informs."""

    expected: float | None
    factors: tuple[str, ...]


def expected_rows(rows: Sequence[Row], recipe: Recipe) -> list[ExpectedRow]:
    """Returns the expected value and the informed factors of each row, in the rows' order."""
    if not rows:
        return []
    form = Expected(rows, recipe)
    published = np.array([row_errors()[row.kind].published if row.kind in row_errors() else 0.0 for row in rows])
    expected = form.at() * np.exp(0.0 if recipe.hardware.is_cpu else published)
    acting = [factor for factor in factors() if factor.acts_on(recipe.hardware)]
    zero = {factor.name: 0.0 for factor in factors()}

    def logs(constants: Constants) -> Floats:
        found: Floats = np.log(np.maximum(np.nan_to_num(form.at(constants), nan=1.0), 1e-12))
        return found

    slopes = np.abs(slopes_of(logs, [factor.name for factor in acting], zero, logs({})))
    return [
        ExpectedRow(
            expected=float(value) if np.isfinite(value) else None,
            factors=tuple(
                factor.name
                for factor, at in zip(acting, slope, strict=True)
                if at > MIN_INFORMING_SLOPE and row.kind in row_errors()
            ),
        )
        for row, value, slope in zip(rows, expected, slopes, strict=True)
    ]


class _Form:
    """Rows that inform factors, and their closed form, both whitened by the covariance of the rows' errors."""

    def __init__(self, rows: Sequence[Row], recipe: Recipe) -> None:
        known = [row for row in rows if row.kind in row_errors() and row.measured]
        expected = Expected(known, recipe).at() if known else np.zeros(0)
        self._rows = [row for row, value in zip(known, expected, strict=True) if np.isfinite(value) and value > 0]
        self._expected = Expected(self._rows, recipe)
        kinds = np.array([row.kind for row in self._rows])
        together = "shared" if recipe.burst.engine == "simulated" else "real"
        shared, own = (np.array([getattr(row_errors()[kind], name) for kind in kinds]) for name in (together, "own"))
        same = kinds[:, None] == kinds[None, :]
        self._root = cholesky(np.outer(shared, shared) * same + np.diag(own**2), lower=True) if len(kinds) else same
        offsets = np.array([row_errors()[kind].offset for kind in kinds])
        self.observed = self._whitened(np.log([row.measured or 1.0 for row in self._rows]) - offsets)

    def predicted(self, constants: Constants) -> Floats:
        """Returns the whitened logs of the closed form: [R], or [K, R] for K sets of constants."""
        return self._whitened(np.log(np.maximum(self._expected.at(constants), 1e-12)))

    def _whitened(self, logs: Floats) -> Floats:
        if not logs.shape[-1]:
            return logs
        solved: Floats = solve_triangular(self._root, logs.reshape(-1, logs.shape[-1]).T, lower=True).T
        return solved.reshape(logs.shape)
