"""Expectations before any burst: the probability of guilt of each difference, and the noise of a burst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from policies.bisect.question import MIN_EFFECT
from policies.constants import constant
from policies.noise import MIN_HALF_SPREAD

EXPECTED_CULPRITS = constant("bisect_expected_culprits")
# least probability of a difference, as a fraction of the mean one, however small its predicted effect (judged)
MIN_SHARE = 0.2
MAX_GUILT = 0.6  # upper limit, however large the predicted effect: a prediction is not evidence


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The predicted effect of a difference: mean and standard deviation of the log ratio of cost.

    `published`: taken from published effects, because the estimate predicts no change.
    """

    log_cost: float
    deviation: float
    published: bool = False

    def exceeds(self, least: float) -> float:
        """Returns the probability that the effect is at least `least`."""
        return 1 - NormalDist(self.log_cost, self.deviation).cdf(least)


def guilt_of(predicted: Sequence[Predicted]) -> tuple[float, ...]:
    """Returns the probability of guilt of each difference: EXPECTED_CULPRITS in total, distributed by predicted effect,
    then limited to MAX_GUILT and to at least MIN_SHARE of the mean."""
    chances = [each.exceeds(MIN_EFFECT) for each in predicted]
    total = sum(chances) or 1.0
    lowest = min(MIN_SHARE * EXPECTED_CULPRITS / len(chances), MAX_GUILT) if chances else 0.0
    return tuple(min(max(EXPECTED_CULPRITS * each / total, lowest), MAX_GUILT) for each in chances)


def expected_deviation(observed: Iterable[float]) -> float:
    """Returns the expected relative deviation of a burst: the largest of `observed`, estimated from steps, but at least
    MIN_HALF_SPREAD, since the noise between bursts does not show within one."""
    return max([MIN_HALF_SPREAD, *observed])
