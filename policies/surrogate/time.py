"""Step time of one cluster: a posterior over the closed form's factors, fitted to measured steps and traced parts.

    log step(x) = log closed form(x; constants moved by θ) + g(x)

θ has the priors of `factors.csv`; g is the error that the closed form keeps at any constants, a Gaussian process over
the knobs. Every traced part has such a process of its own, so that an error of the form is not taken for a shift of θ.
θ is the maximum a posteriori (SciPy's least squares), its covariance Laplace's. Shapes: N candidates, F factors, M
measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from scipy.linalg import block_diag, cholesky, solve_triangular

from policies.constants import constant
from policies.noise import PINNED
from policies.surrogate.evidence import Evidence
from policies.surrogate.factors import Factor, factors, move_constants, move_constants_of
from policies.surrogate.huber import huber_loss
from policies.surrogate.kernel import GaussianProcess, features, fit_process
from policies.surrogate.measured_form import PROXY_PREFIX, RESIDUAL_DEVIATION, MeasuredForm, noise_of, on_cpu
from trainer.estimate.candidates import Candidates, Floats, tabulate
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.constants import constants as fitted
from trainer.estimate.time.estimate import stages_of
from trainer.recipe import Recipe
from trainer.recipe.hardware import Hardware
from trainer.recipe.tables import read_table

MIN_DEVIATION = constant("min_deviation")
MAX_SHIFT_SPREADS = constant("max_shift_spreads")
DERIVATIVE_STEP = constant("derivative_step")
TOUCHED_SLOPE = constant("touched_slope")
# candidates times sets of constants evaluated in one call: beyond it, memory access costs more than fewer calls save
MAX_ROWS_PER_CALL = 1 << 14
MAX_EVALUATIONS, RELATIVE_TOLERANCE = int(constant("max_evaluations")), constant("relative_tolerance")


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Mean, [F], and covariance, [F, F], of the factors before a study's own bursts."""

    mean: Floats
    covariance: Floats

    @property
    def spread(self) -> Floats:
        """Returns each factor's standard deviation, [F]."""
        deviation: Floats = np.sqrt(np.diag(self.covariance))
        return deviation


def table_prior() -> Prior:
    """Returns the prior of `factors.csv`: mean 0, each factor's spread."""
    spread = table_spread()
    return Prior(mean=np.zeros(len(spread)), covariance=np.diag(spread**2))


def table_spread() -> Floats:
    """Returns each factor's spread by the table, [F]."""
    return np.array([factor.spread for factor in factors()])


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """The closed form at N candidates: log seconds per step, [N], its derivatives by factor, [N, F], and the
    candidates' `features`."""

    mean: Floats
    slopes: Floats
    where: Floats


@dataclass(frozen=True, kw_only=True)
class TimeSurrogate:
    """Posterior of step time: mean [F] and covariance of the factors, and the process `residual` (g) over the residuals
    of measured steps."""

    mean: Floats
    covariance: Floats  # [F, F]
    measured: tuple[Evidence, ...]
    residual: GaussianProcess  # g

    @property
    def theta(self) -> dict[str, float]:
        return _named(factors(), self.mean)

    @property
    def noise(self) -> float:
        """Returns the standard deviation that busy neighbours of CPU ranks add to the log ratio of two bursts; 0 on
        GPUs."""
        if not on_cpu(self.measured):
            return 0.0
        beyond = max(float(np.median(noise_of(self.measured))) ** 2 - PINNED**2, 0.0)
        return float(np.sqrt(2 * beyond))

    def means(self, candidates: Candidates) -> Floats:
        """Returns log seconds per step, [N], by the closed form at the fitted factors, without g: quick enough for
        tables of a whole search space."""
        return np.log(stages_of(candidates, constants=move_constants(self.theta)).step)

    def predict(self, candidates: Candidates) -> tuple[Floats, Floats]:
        """Returns (mean, standard deviation) of log seconds per step, [N] each."""
        found = self.closed_form(candidates)
        mean, variance = self.residual.at(found.where)
        return found.mean + mean, self._deviation(found.slopes, variance)

    def difference(self, those: ClosedForm, one: ClosedForm) -> tuple[Floats, Floats]:
        """Returns (mean, standard deviation), [N] each, of log seconds per step minus those of the row `one`.

        Errors that both share cancel.
        """
        mean, variance = self.residual.difference(those.where, one.where)
        return those.mean - one.mean + mean, self._deviation(those.slopes - one.slopes, variance)

    def covariance_of(self, those: ClosedForm, one: ClosedForm) -> Floats:
        """Returns the covariance, [N], of log seconds per step with those of the row `one`."""
        shared = self.residual.covariance(those.where, one.where)[:, 0]
        covariance: Floats = np.einsum("nf,fg,g->n", those.slopes, self.covariance, one.slopes[0]) + shared
        return covariance

    def closed_form(self, candidates: Candidates) -> ClosedForm:
        """Returns the closed form and its derivatives at the fitted factors."""

        def log_step(constants: Constants) -> Floats:
            logs: Floats = np.log(stages_of(candidates, constants=constants).step)
            return logs

        mean = log_step(move_constants(self.theta))
        acting = [at for at, factor in enumerate(factors()) if factor.acts_on(candidates.base.hardware)]
        slopes = np.zeros((candidates.count, len(factors())))
        slopes[:, acting] = slopes_of(log_step, [factors()[at].name for at in acting], self.theta, mean)
        return ClosedForm(mean=mean, slopes=slopes, where=features(candidates))

    def closed_form_of(self, recipe: Recipe) -> ClosedForm:
        """Returns the closed form of one recipe, cached, since a decision compares many candidates with one
        incumbent."""
        key = recipe.digest()
        if key not in self._of_one:
            self._of_one[key] = self.closed_form(tabulate([recipe]))
        return self._of_one[key]

    @cached_property
    def _of_one(self) -> dict[str, ClosedForm]:
        return {}

    def _deviation(self, slopes: Floats, residual_variance: Floats) -> Floats:
        variance = np.einsum("nf,fg,ng->n", slopes, self.covariance, slopes) + residual_variance
        deviation: Floats = np.sqrt(np.maximum(variance, MIN_DEVIATION**2))
        return deviation


def fit_time(evidence: Sequence[Evidence], prior: Prior | None = None) -> TimeSurrogate:
    """Fits the posterior to every trial with a step time.

    Without one, returns `prior` (None: that of the tables). Pure.
    """
    measured = tuple(each for each in evidence if each.step_s is not None)
    prior = prior or table_prior()
    mean, spreads = prior.mean, prior.covariance
    residual, seen = np.zeros(0), np.zeros((0, 0))
    if measured:
        form = MeasuredForm(measured)
        measured = form.measured
        mean, spreads, of_proxies = _fitted(form, prior)
        fitted_constants = _moved({**_named(factors(), mean), **of_proxies})
        residual = np.log(form.steps) - np.log(form.steps_at(fitted_constants))
        seen = form.where
    return TimeSurrogate(
        mean=mean,
        covariance=spreads,
        measured=measured,
        residual=fit_process(residual, seen, noise_of(measured), prior=RESIDUAL_DEVIATION[on_cpu(measured)]),
    )


def _fitted(form: MeasuredForm, prior: Prior) -> tuple[Floats, Floats, dict[str, float]]:
    """Returns the most likely factors, their covariance, and by how much the factors of proxies differ from them.

    Factors that affect no measurement, and are not correlated with one that does, keep their prior.
    """
    from scipy.optimize import least_squares  # takes half a second to import

    mean, spreads = prior.mean.copy(), prior.covariance.copy()
    before, hardware = _named(factors(), mean), form.hardware
    there = np.array([at for at, factor in enumerate(factors()) if factor.acts_on(hardware)])
    further = proxy_spreads() if any(each.is_proxy for each in form.measured) else {}
    before |= dict.fromkeys(further, 0.0)
    names = [*(factors()[at].name for at in there), *further]
    first = slopes_of(form.predicted, names, before, form.predicted(_moved(before)))
    touched = np.abs(first).max(axis=0) > TOUCHED_SLOPE
    own = touched[: len(there)]
    own |= (np.abs(spreads[np.ix_(there, there[own])]) > 0).any(axis=1)
    first, places = first[:, touched], there[own]
    acting = [name for name, acts in zip(names, touched, strict=True) if acts]
    more = np.array([further[name] for name in acting[len(places) :]])
    start = np.concatenate([prior.mean[places], np.zeros(len(more))])
    spread = np.concatenate([table_spread()[places], more])
    root = block_diag(cholesky(spreads[np.ix_(places, places)], lower=True), np.diag(more))
    whiten = solve_triangular(root, np.eye(len(acting)), lower=True)

    def near(at: Floats) -> dict[str, float]:
        moved = np.clip(at, start - MAX_SHIFT_SPREADS * spread, start + MAX_SHIFT_SPREADS * spread)
        return dict(zip(acting, moved.tolist(), strict=True))

    last: dict[bytes, Floats] = {}  # the last prediction: slopes are asked for where the residual was

    def predicted(at: Floats) -> Floats:
        if at.tobytes() not in last:
            last.clear()
            last[at.tobytes()] = form.predicted(_moved(near(at)))
        return last[at.tobytes()]

    def off(at: Floats) -> Floats:
        return np.concatenate([predicted(at) - form.observed, whiten @ (at - start)])

    def slopes_at(at: Floats) -> Floats:
        slopes = first
        if (at != start).any():
            slopes = slopes_of(form.predicted, acting, near(at), predicted(at))
        return np.concatenate([slopes, whiten])

    found = least_squares(
        off,
        start,
        jac=slopes_at,
        x_scale=np.concatenate([prior.spread[places], more]),
        loss=huber_loss(len(form.observed)),
        max_nfev=MAX_EVALUATIONS,
        ftol=RELATIVE_TOLERANCE,
        xtol=RELATIVE_TOLERANCE,
    )
    moved = near(found.x)
    mean[places] = list(moved.values())[: len(places)]
    left = np.linalg.inv(found.jac.T @ found.jac)
    spreads[np.ix_(places, places)] = left[: len(places), : len(places)]
    return mean, spreads, {name: at for name, at in moved.items() if name.startswith(PROXY_PREFIX)}


@cache
def proxy_spreads() -> dict[str, float]:
    """Returns the prior standard deviations of how far a proxy's factors differ from its target's, by factor: rows of
    `proxy_factors.csv`."""
    rows = read_table("proxy_factors.csv", package="policies.surrogate")
    return {PROXY_PREFIX + row["name"]: float(row["spread"]) for row in rows}


def _moved(theta: Mapping[str, float]) -> dict[str, float]:
    """Returns the constants that factors move; under names that start with PROXY_PREFIX, those of proxies where they
    differ."""
    own, smaller = _of_proxies(theta)
    found = move_constants(own)
    if smaller is not None:
        found |= _of_proxy(move_constants(smaller))
    return found


def _moved_one_by_one(acting: Sequence[str], theta: Mapping[str, float]) -> Iterator[dict[str, float]]:
    """Yields the constants that each factor of `acting` moves, with the factor DERIVATIVE_STEP further than in
    `theta`."""
    own, smaller = _of_proxies(theta)
    for name in acting:
        factor, at = name.removeprefix(PROXY_PREFIX), theta[name] + DERIVATIVE_STEP
        further = {} if factor != name else move_constants_of(factor, {**own, name: at})
        if smaller is not None:
            off = at + theta.get(PROXY_PREFIX + factor, 0.0) if factor == name else own.get(factor, 0.0) + at
            further |= _of_proxy(move_constants_of(factor, {**smaller, factor: off}))
        yield further


def _of_proxies(theta: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float] | None]:
    """Returns the factors of targets, and those of proxies; None for these if they do not differ."""
    own = {name: at for name, at in theta.items() if not name.startswith(PROXY_PREFIX)}
    if len(own) == len(theta):
        return own, None
    further = {name.removeprefix(PROXY_PREFIX): at for name, at in theta.items() if name.startswith(PROXY_PREFIX)}
    return own, {**own, **{name: own.get(name, 0.0) + at for name, at in further.items()}}


def _of_proxy(values: Mapping[str, float]) -> dict[str, float]:
    return {PROXY_PREFIX + name: value for name, value in values.items()}


def _named(acting: Sequence[Factor], at: Floats) -> dict[str, float]:
    return dict(zip((factor.name for factor in acting), at.tolist(), strict=True))


def slopes_of(
    predicted: Callable[[Constants], Floats], acting: Sequence[str], theta: Mapping[str, float], now: Floats
) -> Floats:
    """Returns the derivatives of a prediction [M] by each factor of `acting`, [M, F], by differences from `now`, the
    prediction at `theta`."""
    before, there = _moved(theta), list(_moved_one_by_one(acting, theta))
    together = max(1, MAX_ROWS_PER_CALL // len(now))
    parts = [predicted(_side_by_side(before, there[at : at + together])) for at in range(0, len(there), together)]
    return (np.concatenate(parts) - now).T / DERIVATIVE_STEP


def _side_by_side(before: Mapping[str, float], moved: Sequence[Mapping[str, float]]) -> Constants:
    """Returns K sets of constants as arrays [K, 1], by name: `before`, else the tables', with those of each of
    `moved`."""
    table = fitted()
    names = dict.fromkeys([*before, *(name for each in moved for name in each)])
    starts = {name: before.get(name, table[name.removeprefix(PROXY_PREFIX)]) for name in names}
    found = {name: np.full((len(moved), 1), start, dtype=np.float64) for name, start in starts.items()}
    for row, each in enumerate(moved):
        for name, value in each.items():
            found[name][row] = value
    return found


def constants_by_factor(hardware: Hardware) -> Constants:
    """Returns K sets of constants as arrays [K, 1]: the tables', then one with each factor moved by its prior
    spread."""
    acting = [factor for factor in factors() if factor.acts_on(hardware)]
    return _side_by_side({}, [{}, *(move_constants({factor.name: factor.spread}) for factor in acting)])
