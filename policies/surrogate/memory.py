"""Memory of one cluster: the probability that a recipe fits, fitted to measured peaks and to recipes that ran out of
memory.

    log peak(x, pipeline rank) = log Σ groups (1 + φ) · part(x, pipeline rank) + h(x)

φ scales the parts of the estimate, group by group, with the priors of GROUPS; h is a Gaussian process over the knobs. A
recipe that ran out of memory needed more than the limit, one that ran needed less. Memory outside torch's allocator is
a group of its own, exp(φ) times the estimate, fitted to every burst that measured it. If a rank ran out below the
nominal limit (fragmentation, other processes), the memory that it needed then is taken as the limit. Shapes: N
candidates, P pipeline ranks, G groups, M bursts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from scipy.special import log_ndtr, ndtr

from policies.constants import constant
from policies.surrogate.evidence import Evidence, by_size
from policies.surrogate.kernel import GaussianProcess, features, fit_process
from trainer.estimate.candidates import Candidates, Floats, most_of_ranks, one, tabulate
from trainer.estimate.memory.bound import unbalanced
from trainer.estimate.memory.estimate import MemoryTable, memory_of

DISCREPANCY = constant("memory_discrepancy")  # prior standard deviation of h
NOISE = constant("memory_noise")
MAX_SHIFT_SPREADS = constant("max_shift_spreads")
LIMIT_DEVIATION = constant("memory_edge")
MIN_PEAK = 0.05  # fraction of the estimate below which no peak is predicted (numerical): far below every measured one


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parts of the memory estimate with one common error: prior `mean` and `spread` of φ.

    A group without parts is the memory for routed tokens beyond an even load, where nothing forces a balance.
    """

    parts: tuple[str, ...]
    mean: float
    spread: float

    def gib(self, candidates: Candidates, table: MemoryTable) -> Floats:
        """Returns the GiB of the group, [N, P]."""
        if not self.parts:
            return table.routed_gib * unbalanced(candidates)[..., None]
        found = [table.by_part[name] for name in self.parts if name in table.by_part]
        total: Floats = np.asarray(sum(found, np.zeros(())))
        return total


STATE, ACTIVATIONS = ("weights", "gradients", "master_weights", "optimizer"), ("activations", "cuda_graphs")
LOSS, BUFFERS = ("logits", "workspace"), ("buffers",)
GROUPS: dict[str, Group] = {
    "state": Group(parts=STATE, mean=0.0, spread=constant("memory_state_spread")),
    "activations": Group(
        parts=ACTIVATIONS, mean=constant("memory_activations_mean"), spread=constant("memory_activations_spread")
    ),
    "loss": Group(parts=LOSS, mean=0.0, spread=constant("memory_loss_spread")),
    "buffers": Group(parts=BUFFERS, mean=0.0, spread=constant("memory_buffers_spread")),
    "uneven": Group(parts=(), mean=constant("memory_uneven_mean"), spread=constant("memory_uneven_spread")),
    "fragmentation": Group(
        parts=(*STATE, *ACTIVATIONS, *LOSS, *BUFFERS),
        mean=constant("memory_fragmentation_mean"),
        spread=constant("memory_fragmentation_spread"),
    ),
}
EXTRA = ("uneven", "fragmentation")  # not in the estimate: their factor is φ, not 1 + φ
OUTSIDE_SPREAD = constant("outside_spread")
OUTSIDE_RECIPE_SPREAD = constant("outside_recipe_spread")


@dataclass(frozen=True, kw_only=True)
class MemoryPrior:
    """A cluster's memory before any burst: mean and spread of φ, and the measurements of a probe.

    `discrepancy` is the prior standard deviation of h. Every peak is `scale` times the estimate's plus `step_gib`;
    memory outside the allocator is the estimate's plus `outside_gib`.
    """

    mean: Floats
    spread: Floats
    discrepancy: float = DISCREPANCY
    scale: float = 1.0
    step_gib: float = 0.0
    outside_gib: float = 0.0


def table_memory_prior() -> MemoryPrior:
    """Returns the prior by the tables: that of GROUPS and of memory outside the allocator."""
    groups = GROUPS.values()
    mean = np.array([*(group.mean for group in groups), 0.0])
    return MemoryPrior(mean=mean, spread=np.array([*(group.spread for group in groups), OUTSIDE_SPREAD]))


@dataclass(frozen=True, kw_only=True)
class _Estimated:
    """The estimate as a prior corrects it: GiB of each group, [G, N, P], and outside the allocator, [N]."""

    parts: Floats
    outside_gib: Floats


# estimates of tables that still exist: a study asks for those of its search space at every decision
_ESTIMATED: WeakKeyDictionary[Candidates, tuple[MemoryPrior, _Estimated]] = WeakKeyDictionary()


def _estimated(candidates: Candidates, prior: MemoryPrior) -> _Estimated:
    known = _ESTIMATED.get(candidates)
    if known is None or known[0] is not prior:
        known = _ESTIMATED[candidates] = prior, _estimate(candidates, prior)
    return known[1]


def _estimate(candidates: Candidates, prior: MemoryPrior) -> _Estimated:
    table = memory_of(candidates)
    shape = (candidates.count, candidates.stages.exists.shape[1])
    parts = prior.scale * np.stack([np.broadcast_to(group.gib(candidates, table), shape) for group in GROUPS.values()])
    parts[0] += prior.step_gib * candidates.stages.exists
    return _Estimated(parts=parts, outside_gib=table.outside_gib + prior.outside_gib)


@dataclass(frozen=True, kw_only=True)
class MemorySurrogate:
    """Posterior of peak memory: of the factors φ (mean [G + 1] and covariance; GROUPS, then memory outside the
    allocator), and of the error h, the process `residual` over the residuals of the measured peaks."""

    limit_gib: float | None
    prior: MemoryPrior
    mean: Floats
    covariance: Floats
    residual: GaussianProcess  # of the error h

    def needs(self, candidates: Candidates, *, rank: int | None = None) -> tuple[Floats, Floats]:
        """Returns (GiB that a GPU needs, memory outside the allocator included; standard deviation of its log), [N]
        each: of this pipeline rank, or of the hottest."""
        estimated = _estimated(candidates, self.prior)
        parts = estimated.parts
        peaks = _peaks(parts, self.mean)
        rows = np.arange(candidates.count)
        hottest = peaks.argmax(axis=1) if rank is None else np.full(candidates.count, rank)
        outside = estimated.outside_gib * np.exp(self.mean[-1])
        error, variance = self.residual.at(features(candidates))
        variance = np.maximum(variance, NOISE**2)
        peak = peaks[rows, hottest] * np.exp(error)
        need = peak + outside
        slopes = np.concatenate([parts[:, rows, hottest].T, outside[:, None]], axis=1) / need[:, None]
        spread = np.einsum("ng,gh,nh->n", slopes, self.covariance, slopes) + variance
        spread += (OUTSIDE_RECIPE_SPREAD * slopes[:, -1]) ** 2
        return need, np.sqrt(spread)

    def peaks(self, candidates: Candidates) -> Floats:
        """Returns the peak of torch's allocator on the hottest rank, GiB, [N]."""
        error, _ = self.residual.at(features(candidates))
        peaks: Floats = most_of_ranks(_peaks(_estimated(candidates, self.prior).parts, self.mean)) * np.exp(error)
        return peaks

    def fits(self, candidates: Candidates) -> Floats:
        """Returns P(fits), [N]; 1 where no limit is known."""
        if self.limit_gib is None:
            return np.ones(candidates.count)
        need, deviation = self.needs(candidates)
        return fit_probability(need, deviation, self.limit_gib)


def fit_probability(need_gib: Floats, deviation: Floats, limit_gib: float | Floats) -> Floats:
    """Returns P(fits): the probability that a need is below the limit. `deviation` is the standard deviation of the log
    need; that of the log limit is LIMIT_DEVIATION."""
    chance: Floats = ndtr(np.log(limit_gib / need_gib) / np.sqrt(deviation**2 + LIMIT_DEVIATION**2))
    return chance


def _peaks(parts: Floats, phi: Floats) -> Floats:
    estimated = np.array([name not in EXTRA for name in GROUPS], dtype=np.float64)
    peaks, plain = (np.einsum("g,gnp->np", factors, parts) for factors in (estimated + phi[: len(GROUPS)], estimated))
    least: Floats = np.maximum(peaks, MIN_PEAK * plain)
    return least


def _side_by_side(parts: Sequence[Floats]) -> Floats:
    """Returns the parts [G, N, P] of several tables with different P as one array, with zeros beyond a row's own
    pipeline ranks."""
    most = max(each.shape[-1] for each in parts)
    return np.concatenate([np.pad(each, ((0, 0), (0, 0), (0, most - each.shape[-1]))) for each in parts], axis=1)


def _mills_ratio(z: Floats) -> Floats:
    """Returns the density of the standard normal distribution over its cumulative probability."""
    ratio: Floats = np.exp(-(z**2) / 2 - math.log(2 * math.pi) / 2 - log_ndtr(z))
    return ratio


def fit_memory(
    evidence: Sequence[Evidence], limit_gib: float | None, prior: MemoryPrior | None = None
) -> MemorySurrogate:
    """Fits the posterior to all measured peaks and all recipes that ran out of memory.

    Without evidence, returns `prior` (None: that of the tables). Pure.
    """
    from scipy.optimize import minimize  # takes half a second to import

    prior = prior or table_memory_prior()
    limit_gib = _limit_met(evidence, limit_gib, prior)
    mean, spread = prior.mean, prior.spread
    informative = [each for each in evidence if each.peak_gib or (each.out_of_memory and limit_gib is not None)]
    rows = [each for group in by_size(informative) for each in group]
    if not rows:
        nothing = np.zeros(0)
        return MemorySurrogate(
            limit_gib=limit_gib,
            prior=prior,
            mean=mean,
            covariance=np.diag(spread**2),
            residual=fit_process(nothing, np.zeros((0, 0)), nothing, prior=prior.discrepancy),
        )
    observed = _Observed(rows, limit_gib, prior)

    def cost(phi: Floats) -> float:
        return observed.cost(phi) + 0.5 * float((((phi - mean) / spread) ** 2).sum())

    found = minimize(cost, mean, method="L-BFGS-B", bounds=_bounds(mean, spread))
    covariance = np.asarray(np.linalg.inv(observed.curvature(found.x) + np.diag(spread**-2.0)), dtype=np.float64)
    residual, seen = observed.residual(found.x), observed.where
    return MemorySurrogate(
        limit_gib=limit_gib,
        prior=prior,
        mean=found.x,
        covariance=covariance,
        residual=fit_process(residual, seen, np.full(len(rows), NOISE), prior=prior.discrepancy),
    )


def _limit_met(evidence: Sequence[Evidence], limit_gib: float | None, prior: MemoryPrior) -> float | None:
    """Returns the effective limit: the least total that a rank could not hold, but no less than what ran and no more
    than `limit_gib`."""
    denied = [each for each in evidence if each.denied_gib is not None]
    if limit_gib is None or not denied:
        return limit_gib
    ran = [each for each in evidence if each.peak_gib]
    denied_totals = [
        (each.denied_gib or 0.0) + outside for each, outside in zip(denied, _outside(denied, prior), strict=True)
    ]
    peaks = [max(each.peak_gib) + outside for each, outside in zip(ran, _outside(ran, prior), strict=True)]
    return min(limit_gib, max([min(denied_totals), *peaks]))


def _outside(evidence: Sequence[Evidence], prior: MemoryPrior) -> list[float]:
    """Returns the memory outside the allocator of each trial, GiB: as measured, else by estimate."""
    return [each.outside_gib or float(_estimated(one(each.recipe), prior).outside_gib[0]) for each in evidence]


def _bounds(mean: Floats, spread: Floats) -> list[tuple[float, float]]:
    return list(
        zip((mean - MAX_SHIFT_SPREADS * spread).tolist(), (mean + MAX_SHIFT_SPREADS * spread).tolist(), strict=True)
    )


class _Observed:
    """The observations of M trials, grouped by size of what ran: peaks by pipeline rank, and whether each ran out of
    memory."""

    def __init__(self, evidence: Sequence[Evidence], limit_gib: float | None, prior: MemoryPrior) -> None:
        tables = [tabulate([each.recipe for each in group]) for group in by_size(evidence)]
        estimated = [_estimated(table, prior) for table in tables]
        self.where = np.concatenate([features(table) for table in tables])
        self.outside_estimate = np.concatenate([each.outside_gib for each in estimated])
        self.parts = _side_by_side([each.parts for each in estimated])
        self.limit_gib = limit_gib
        self.measured = np.array([bool(each.peak_gib) for each in evidence])
        self.died = np.array([each.out_of_memory for each in evidence])
        self.outside = np.array([each.outside_gib or 0.0 for each in evidence])
        self.outside_measured = (self.outside > 0) & (self.outside_estimate > 0)  # true where `outside` was measured
        self.peaks = np.full(self.parts.shape[1:], np.nan)
        for row, each in enumerate(evidence):
            self.peaks[row, : len(each.peak_gib)] = each.peak_gib
        self.discrepancy = prior.discrepancy
        self.highest = np.nan_to_num(self.peaks).max(axis=1)  # of the ranks of each trial, GiB
        self.deviation = np.sqrt(prior.discrepancy**2 + NOISE**2)
        self._total_deviation = float(np.sqrt(self.deviation**2 + LIMIT_DEVIATION**2))
        self._deviations = np.where(self.measured, LIMIT_DEVIATION, self._total_deviation)

    def errors(self, phi: Floats) -> Floats:
        """Returns the log of measured over predicted peak, [M, P]; the mean of the row for ranks that were not
        measured."""
        predicted = np.where(self.measured[:, None], _peaks(self.parts, phi), 1.0)
        errors = np.log(self.peaks / np.maximum(predicted, 1e-9))
        known = np.isfinite(errors)
        mean = np.where(known, errors, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        return np.where(known, errors, mean[:, None])

    def residual(self, phi: Floats) -> Floats:
        """Returns the residual of every trial, [M].

        For one that ran out of memory, it is the expected excess over the limit.
        """
        short = -self._over(phi) * self._total_deviation / self.discrepancy
        expected = self.discrepancy * _mills_ratio(-short)
        left: Floats = np.where(self.measured, self.errors(phi).mean(axis=1), expected)
        return left

    def cost(self, phi: Floats) -> float:
        """Returns minus the log likelihood.

        The ranks of one trial share their error, so that they count as one observation.
        """
        errors = self.errors(phi)[self.measured]
        cost = 0.5 * (errors**2).mean(axis=1).sum() / self.deviation**2
        log_ratio = np.log(self.outside[self.outside_measured] / self.outside_estimate[self.outside_measured])
        cost += 0.5 * ((log_ratio - phi[-1]) ** 2).sum() / OUTSIDE_RECIPE_SPREAD**2
        if self.limit_gib is None:
            return float(cost)
        over = self._over(phi)
        away = np.where(self.died, over, -over)
        return float(cost - log_ndtr(away).sum())

    def curvature(self, phi: Floats) -> Floats:
        """Returns the Gauss-Newton curvature of the cost at `phi`, [G + 1, G + 1]."""
        peaks = np.maximum(_peaks(self.parts, phi), 1e-9)
        slopes = np.concatenate([self.parts / peaks, np.zeros((1, *peaks.shape))])  # [G + 1, M, P]
        known = np.isfinite(self.peaks) & self.measured[:, None]
        weight = known / np.maximum(known.sum(axis=1, keepdims=True), 1) / self.deviation**2
        found: Floats = np.einsum("gmp,hmp,mp->gh", slopes, slopes, weight)
        found[-1, -1] += self.outside_measured.sum() / OUTSIDE_RECIPE_SPREAD**2
        if self.limit_gib is None:
            return found
        rows, hottest = np.arange(len(peaks)), peaks.argmax(axis=1)
        outside = self._outside(phi)
        moves = np.concatenate(
            [self.parts[:, rows, hottest] * ~self.measured, [outside * ~self.outside_measured]]
        )  # derivative with respect to φ, [G + 1, M]
        edge = moves / self._needs(phi) / self._deviations
        sign = np.where(self.died, 1.0, -1.0)
        z = sign * self._over(phi)
        ratio = _mills_ratio(z)
        cut: Floats = found + np.einsum("gm,hm,m->gh", edge, edge, ratio * (ratio + z))
        return cut

    def _over(self, phi: Floats) -> Floats:
        """Returns how far each trial is over the limit, in standard deviations, [M]."""
        over: Floats = np.log(self._needs(phi) / (self.limit_gib or 1.0)) / self._deviations
        return over

    def _needs(self, phi: Floats) -> Floats:
        """Returns the GiB that the GPU needs, [M]: measured peaks where available, else predicted."""
        predicted = most_of_ranks(_peaks(self.parts, phi))
        peak = np.where(self.measured, self.highest, predicted)
        needs: Floats = np.maximum(peak + self._outside(phi), 1e-9)
        return needs

    def _outside(self, phi: Floats) -> Floats:
        """Returns the memory outside the allocator, GiB, [M]: measured where available, else predicted."""
        return np.where(self.outside_measured, self.outside, self.outside_estimate * np.exp(phi[-1]))
