"""The posterior over what makes a recipe slower, from bursts of subsets of its differences.

    log cost = base + sum of the effects of the terms inside the subset + small effects of each difference + noise

A hypothesis is a set of terms. Effects, base and noise are Gaussian, so the evidence of a hypothesis is in closed
form. Hypotheses are grown term by term, the best first (a beam); the deviation of a burst is not known and is summed
over a grid. Shapes: M bursts, T terms, H hypotheses, R terms of a hypothesis (padded with a term that is never
inside), C subsets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from policies.bisect.question import Subset
from policies.bisect.terms import Terms
from policies.constants import constant
from trainer.estimate.candidates import Flags, Floats, Integers

BASE_DEVIATION = 1.0  # prior deviation of A's log cost around its first burst: wide, so that the bursts decide
EFFECT_DEVIATION = constant("bisect_effect_deviation")
SMALL_DEVIATION = constant("bisect_small_deviation")
# points of the noise grid: powers of two times the least deviation
NOISE_OCTAVES = np.array([*np.arange(-1.5, 2.5, 0.5), *np.arange(2.5, 7.5)])
MAX_TERMS = 5  # per hypothesis
BEAM, KEPT = 40, 240  # hypotheses that are extended in each round, and that are kept
QUANTILE_POINTS = 80  # points between which a quantile of the noise is interpolated
PRIOR_SCALES = 9  # deviations, up to that observed between steps, that the prior of the noise is summed over
# Hypotheses are grown at several noise deviations, each this many times the one before: one of three true terms
# explains little by itself, and only a wide deviation keeps it
TEMPER_RATIO = 5.0

Hypothesis = tuple[int, ...]  # terms, ascending


@dataclass(frozen=True, kw_only=True)
class SmallEffects:
    """The small effects that n differences have without any term: means and standard deviations [n], log cost."""

    mean: Floats
    deviation: Floats

    def shared(self, subsets: Flags, others: Flags) -> Floats:
        """Returns the covariance [M, C] of the small effects inside subsets."""
        found: Floats = (subsets * self.deviation**2) @ others.T.astype(float)
        return found

    def expected(self, subsets: Flags) -> Floats:
        """Returns the mean [M] of the small effects inside subsets."""
        found: Floats = subsets.astype(float) @ self.mean
        return found


def small_effects(count: int) -> SmallEffects:
    """Returns the small effects of differences about which nothing is known."""
    return SmallEffects(mean=np.zeros(count), deviation=np.full(count, SMALL_DEVIATION))


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """H hypotheses with their probabilities [H], and the noise of a burst.

    `noise` has G possible standard deviations of a burst and their probabilities, [G] each; `deviation` is their
    geometric mean, weighted by probability.
    """

    terms: Terms
    small: SmallEffects
    subsets: Flags  # [M, n]
    costs: Floats  # [M], less the first, and less the expected small effects
    hypotheses: tuple[Hypothesis, ...]
    probability: Floats
    deviation: float
    noise: tuple[Floats, Floats]
    scale: float  # standard deviation of the effect of a term that acts, before any burst

    def effects(self) -> tuple[Floats, Floats]:
        """Returns the mean [H, R] and the covariance [H, R, R] of the effects of each hypothesis."""
        inside = self._inside(self.subsets)
        seen = self.scale**2 * np.swapaxes(inside, 1, 2)
        mean = np.einsum("hrm,hm->hr", seen, self._weights)
        prior = self.scale**2 * np.eye(inside.shape[2])
        covariance: Floats = prior - seen @ self._inverse @ np.swapaxes(seen, 1, 2)
        return mean, covariance

    def predicted(self, subsets: Flags) -> tuple[Floats, Floats]:
        """Returns the mean and the standard deviation of the log cost of a burst of each subset, less that of the first
        burst, [H, C] each."""
        mean, variance = self._conditioned(subsets, base=BASE_DEVIATION**2)
        expected = self.small.expected(subsets) - self.small.expected(self.subsets[:1])
        deviation: Floats = np.sqrt(np.maximum(variance, 0.0) + self.deviation**2)
        return mean + expected, deviation

    def relative_to_a(self, subsets: Flags) -> tuple[Floats, Floats]:
        """Returns the mean and the standard deviation [H, C] of the log cost of each subset relative to the empty
        subset (recipe A), without the noise of a burst."""
        mean, variance = self._conditioned(subsets, base=0.0)
        return mean + self.small.expected(subsets), np.sqrt(np.maximum(variance, 0.0))

    def cost(self, subsets: Flags) -> tuple[Floats, Floats]:
        """Returns the mean and the standard deviation [C] of the log cost of each subset relative to recipe A, averaged
        over the hypotheses by probability."""
        mean, deviation = self.relative_to_a(subsets)
        middle: Floats = self.probability @ mean
        variance = self.probability @ (deviation**2 + mean**2) - middle**2
        return middle, np.sqrt(np.maximum(variance, 0.0))

    def noise_quantile(self, share: float) -> float:
        """Returns the quantile `share` of the noise of a burst, given that its deviation is not known."""
        from scipy.special import ndtr  # imported here so that commands that compare nothing start without SciPy

        grid, probability = self.noise
        noises = np.geomspace(grid[0] / 10, 10 * grid[-1], QUANTILE_POINTS)
        return float(np.interp(share, ndtr(noises[:, None] / grid) @ probability, noises))

    def _conditioned(self, subsets: Flags, *, base: float) -> tuple[Floats, Floats]:
        """Returns the mean and the variance [H, C] of the sum of base and effects inside each subset, given the bursts.

        `base` is the prior variance of the base.
        """
        inside = self._inside(subsets)
        shared = base + self.small.shared(subsets, self.subsets)
        cross = shared + self.scale**2 * inside @ np.swapaxes(self._inside(self.subsets), 1, 2)
        mean: Floats = np.einsum("hcm,hm->hc", cross, self._weights)
        own = base + subsets @ self.small.deviation**2 + self.scale**2 * inside.sum(axis=2)
        variance: Floats = own - np.einsum("hcm,hcm->hc", cross @ self._inverse, cross)
        return mean, variance

    @cached_property
    def _places(self) -> Integers:
        """Returns the indices of the terms of each hypothesis, [H, R], padded with T."""
        most = max(1, *map(len, self.hypotheses))
        none = len(self.terms.sets)
        return np.array([(*each, *[none] * (most - len(each))) for each in self.hypotheses], dtype=np.int64)

    def _inside(self, subsets: Flags) -> Floats:
        """Returns [H, C, R]: 1 where a subset contains all members of a term of a hypothesis."""
        columns = self.terms.columns(subsets)
        padded = np.concatenate([columns, np.zeros((len(columns), 1))], axis=1)
        return np.moveaxis(padded[:, self._places], 0, 1)

    @cached_property
    def _inverse(self) -> Floats:
        inside = self._inside(self.subsets)
        background = _background(self.small, self.subsets, self.deviation)
        covariance = background + self.scale**2 * inside @ np.swapaxes(inside, 1, 2)
        return np.asarray(np.linalg.inv(covariance), dtype=np.float64)

    @cached_property
    def _weights(self) -> Floats:
        weights: Floats = self._inverse @ self.costs
        return weights


def fit_posterior(
    terms: Terms,
    subsets: Flags,
    log_costs: Sequence[float],
    *,
    deviation: float,
    least_deviation: float | None = None,
    small: SmallEffects | None = None,
    scale: float = EFFECT_DEVIATION,
) -> Posterior:
    """Returns the posterior after M bursts of `subsets` [M, n]. Pure.

    `deviation` is the relative standard deviation that the steps of a burst suggest, `least_deviation` that of a quiet
    machine (None: as `deviation`). The bursts decide: the deviation of the posterior is their own. `small` is None
    where nothing is known of the small effects. `scale` is the prior standard deviation of the effect of a term.
    """
    least = deviation if least_deviation is None else min(least_deviation, deviation)
    small = small or small_effects(subsets.shape[1])
    grid = least * 2.0**NOISE_OCTAVES
    expected = small.expected(subsets)
    costs = np.array(log_costs) - log_costs[0] - (expected - expected[0])
    scale = max(scale, float(np.ptp(costs)))  # one effect of 1.5 must not be less likely than two of 0.75
    columns, kind = np.unique(terms.columns(subsets), axis=1, return_inverse=True)
    backgrounds = [_background(small, subsets, each) for each in _tempers(least, deviation, float(np.ptp(costs)))]
    found = (_grown(terms, columns, kind.reshape(-1), costs, each, scale) for each in backgrounds)
    grown = tuple(dict.fromkeys(hypothesis for each in found for hypothesis in each))
    posterior = Posterior(
        terms=terms,
        small=small,
        subsets=subsets,
        costs=costs,
        hypotheses=grown,
        probability=np.zeros(0),
        deviation=deviation,
        noise=(grid, np.ones(len(grid)) / len(grid)),
        scale=scale,
    )
    log_odds = np.array([terms.log_odds[list(each)].sum() for each in grown])
    prior = np.log(np.gradient(NOISE_OCTAVES) * _noise_prior(grid, least, deviation))
    logs = np.stack([_evidence(posterior, each) + log_odds for each in grid]) + prior[:, None]  # [grid, H]
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    by_noise, probability = weights.sum(axis=1), weights.sum(axis=0)
    order = np.argsort(-probability)
    return replace(
        posterior,
        hypotheses=tuple(grown[row] for row in order),
        probability=probability[order],
        deviation=float(np.exp(by_noise @ np.log(grid))),
        noise=(grid, by_noise),
    )


def _background(small: SmallEffects, subsets: Flags, deviation: float) -> Floats:
    """Returns the covariance [M, M] of the bursts' log costs under the hypothesis without terms."""
    found: Floats = BASE_DEVIATION**2 + small.shared(subsets, subsets) + deviation**2 * np.eye(len(subsets))
    return found


def _noise_prior(grid: Floats, least: float, observed: float) -> Floats:
    """Returns the prior density of a burst's log deviation at each point of `grid`.

    Scaled inverse chi-squared with one degree of freedom. Its scale is the deviation that steps show or, with the same
    probability, any between that of a quiet machine and this one: a busy minute says little about the next burst.
    """
    scales = np.geomspace(least, observed, PRIOR_SCALES) if observed > least else np.array([least])
    density: Floats = np.exp(-((scales / grid[:, None]) ** 2) / 2) * scales / grid[:, None]
    found: Floats = (density.mean(axis=1) + density[:, -1]) / 2
    return found


def _tempers(least: float, observed: float, apart: float) -> list[float]:
    """Returns deviations of a burst at which to grow hypotheses: at least one is near the real deviation if costs of
    bursts differ by up to `apart`."""
    steps = math.log(max(TEMPER_RATIO * observed, apart) / least) / math.log(TEMPER_RATIO)
    return [least * TEMPER_RATIO**step for step in range(math.floor(steps + 1e-9) + 1)]


def _evidence(posterior: Posterior, deviation: float) -> Floats:
    """Returns the log evidence [H] of the hypotheses if a burst has this deviation."""
    inside = posterior._inside(posterior.subsets)
    background = _background(posterior.small, posterior.subsets, deviation)
    covariance = background + posterior.scale**2 * inside @ np.swapaxes(inside, 1, 2)
    root = np.linalg.cholesky(covariance)
    costs = np.broadcast_to(posterior.costs[:, None], (len(root), len(posterior.costs), 1))
    white = np.linalg.solve(root, costs)[..., 0]
    found: Floats = -0.5 * (white**2).sum(axis=1) - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return found


def _grown(
    terms: Terms, columns: Floats, kind: Integers, costs: Floats, background: Floats, scale: float
) -> tuple[Hypothesis, ...]:
    """Returns the most probable hypotheses, grown term by term from the empty one.

    `columns` [M, K] are the distinct columns of the terms, `kind` [T] the index of each term's column.
    """
    found: dict[Hypothesis, float] = {(): 0.0}
    frontier: list[Hypothesis] = [()]
    for _ in range(MAX_TERMS):
        scores = np.array([found[each] for each in frontier])[:, None] + terms.log_odds
        scores += np.stack([_gains(columns, kind[list(each)], costs, background, scale) for each in frontier])[:, kind]
        best = _highest(scores.reshape(-1), 2 * KEPT)
        new: dict[Hypothesis, float] = {}
        for row, term in zip(*np.unravel_index(best, scores.shape), strict=True):
            grown = tuple(sorted({*frontier[row], int(term)}))
            if len(grown) > len(frontier[row]):
                new.setdefault(grown, float(scores[row, term]))
        found |= new
        frontier = _frontier(new, kind)
        if not frontier:
            break
    kept: list[Hypothesis] = sorted(found, key=lambda each: -found[each])[:KEPT]
    return tuple(kept)


def _highest(scores: Floats, count: int) -> Integers:
    """Returns the indices of the `count` highest scores, descending, of equal ones the first; sorts no others."""
    least = np.partition(scores, -count)[-count] if count < len(scores) else -np.inf
    those = np.flatnonzero(scores >= least)
    found: Integers = those[np.argsort(-scores[those], kind="stable")[:count]]
    return found


def _frontier(new: Mapping[Hypothesis, float], kind: Integers) -> list[Hypothesis]:
    """Returns the best of the new hypotheses, and the best of those that the bursts can distinguish."""
    ordered = sorted(new, key=lambda each: -new[each])
    apart: dict[tuple[int, ...], Hypothesis] = {}
    for each in ordered:
        apart.setdefault(tuple(sorted(kind[list(each)].tolist())), each)
    return list(dict.fromkeys([*ordered[:BEAM], *list(apart.values())[:BEAM]]))


def _gains(columns: Floats, has: Integers, costs: Floats, background: Floats, scale: float) -> Floats:
    """Returns how much each further column [M, K] adds to the log evidence of a hypothesis that has the columns
    `has`."""
    inside = columns[:, has]
    inverse = np.linalg.inv(background + scale**2 * inside @ inside.T)
    size = scale**2 * np.einsum("mk,mk->k", inverse @ columns, columns)
    fit = scale**2 * (columns.T @ (inverse @ costs)) ** 2
    gains: Floats = 0.5 * fit / (1 + size) - 0.5 * np.log1p(size)
    return gains


def as_subset(terms: Terms, hypothesis: Sequence[int]) -> Subset:
    """Returns the union of the differences of some terms."""
    return frozenset(member for term in hypothesis for member in terms.sets[term])
