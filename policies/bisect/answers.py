"""The guilty sets that a posterior holds possible, with their probabilities.

A term of a hypothesis is guilty if its effect is at least `least`. Where the bursts leave that open, the hypothesis is
two answers: its effect is below the limit, or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from policies.bisect.posterior import Posterior, as_subset
from policies.bisect.question import Subset
from trainer.estimate.candidates import Flags, Floats, Integers

UNRESOLVED = 4.0  # times `least`: deviation of an effect about which the bursts say nothing yet (judged)
OPEN = 0.01  # probability of the less likely side of the limit, from which on a hypothesis is two answers (judged)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """K answers: the hypothesis of each [K], its guilty set, its probability [K].

    `shift` and `cut` [K]: what the side of the limit moves the mean of the open effect by, and takes from its variance;
    `term` [K] is its place in the hypothesis.
    """

    posterior: Posterior
    rows: Integers
    sets: tuple[Subset, ...]
    probability: Floats
    term: Integers
    shift: Floats
    cut: Floats

    @cached_property
    def by_set(self) -> dict[Subset, float]:
        """Returns the probability of each guilty set, the largest first."""
        found: dict[Subset, float] = {}
        for each, chance in zip(self.sets, self.probability.tolist(), strict=True):
            found[each] = found.get(each, 0.0) + chance
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def predicted(self, subsets: Flags, most: int) -> tuple[Floats, Floats]:
        """Returns the mean and the standard deviation of the log cost of a burst of each subset, [K, C] each, of the
        first `most` answers."""
        rows, term = self.rows[:most], self.term[:most]
        mean, deviation = self.posterior.predicted(subsets)
        slopes = self.posterior.slopes(subsets)[rows, :, term]  # [K, C], of the cost by the open effect
        variance = deviation[rows] ** 2 - slopes**2 * self.cut[:most, None]
        floor = self.posterior.deviation**2
        return mean[rows] + slopes * self.shift[:most, None], np.sqrt(np.maximum(variance, floor))


def answers(posterior: Posterior, least: float) -> Answers:
    """Returns the answers of a posterior, the most probable first."""
    effects, covariance = posterior.effects()
    variance = np.maximum(np.diagonal(covariance, axis1=1, axis2=2), 1e-12)
    deviation = np.sqrt(variance)
    unresolved = deviation > UNRESOLVED * least
    real = np.array([[at < len(each) for at in range(effects.shape[1])] for each in posterior.hypotheses])
    guilty = (effects >= least) | ((effects > 0) & unresolved)  # an effect that no burst resolves has a mean near zero
    above = np.where(unresolved | ~real, guilty, ndtr((effects - least) / deviation))
    term = np.abs(above - 0.5).argmin(axis=1)
    rows = np.arange(len(effects))
    chance, z = above[rows, term], (least - effects[rows, term]) / deviation[rows, term]
    found: list[tuple[float, int, Subset, float, float]] = []
    for row, hypothesis in enumerate(posterior.hypotheses):
        for side, share in ((True, chance[row]), (False, 1 - chance[row])):
            if share < OPEN:
                continue
            split = OPEN <= chance[row] <= 1 - OPEN
            flags = guilty[row].copy()
            flags[term[row]] = side and bool(real[row, term[row]])
            members = [each for each, flag in zip(hypothesis, flags, strict=False) if flag]
            shift, cut = _truncated(float(z[row]), above=side) if split else (0.0, 0.0)
            weight = float(posterior.probability[row] * share)
            sized = shift * float(deviation[row, term[row]]), cut * float(variance[row, term[row]])
            found.append((weight, row, as_subset(posterior.terms, members), *sized))
    found.sort(key=lambda each: -each[0])
    return _answers(posterior, found, term)


def _answers(posterior: Posterior, found: Sequence[tuple[float, int, Subset, float, float]], term: Integers) -> Answers:
    weight, rows, sets, shift, cut = zip(*found, strict=True)
    return Answers(
        posterior=posterior,
        rows=np.array(rows),
        sets=tuple(sets),
        probability=np.array(weight) / sum(weight),
        term=term[np.array(rows)],
        shift=np.array(shift),
        cut=np.array(cut),
    )


def _truncated(z: float, *, above: bool) -> tuple[float, float]:
    """Returns the mean of a standard normal above or below z, and what that takes from its variance."""
    density = float(np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))
    mean = density / float(ndtr(-z)) if above else -density / float(ndtr(z))
    return mean, mean * (mean - z)
