"""How far two bursts of one recipe lie apart on this machine, measured from repeats.

A burst is summed up by the median cost of its measured steps: microseconds of one GPU for a token. What
matters is how that median moves from burst to burst, not the spread of steps inside one: a busy neighbour
slows whole bursts. The few repeats a study can pay for are pooled over all trials and held up by a weak prior
from the steps themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from policies.noise import PINNED, median_error
from policies.trial import Trial
from trainer.burst import Outcome

Cost = Callable[[Outcome], list[float]]  # per measured step, microseconds a token

PRIOR_WEIGHT = 1  # repeats the prior counts for. With 2, a machine that drifts 3 % had 9 % of equal recipes accepted


def wall_cost(outcome: Outcome) -> list[float]:
    """Microseconds of one GPU for each token, by step."""
    scale = max(outcome.ranks, 1) / max(outcome.tokens_per_step, 1)
    return [us * scale for us in outcome.step_us]


def cpu_cost(outcome: Outcome) -> list[float]:
    """Microseconds of CPU time, all ranks together, for each token, by step; empty where it was not
    measured."""
    scale = 1.0 / max(outcome.tokens_per_step, 1)
    return [us * scale for us in outcome.cpu_us] if any(outcome.cpu_us) else []


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Relative standard deviation of a burst's median, and the degrees of freedom behind it (prior
    included)."""

    deviation: float
    freedom: int
    repeats: int  # bursts beyond the first of their trial

    def band(self, bursts: int, others: int, quantile: float) -> float:
        """How far the medians of `bursts` and `others` bursts of one recipe may lie apart, as a log ratio."""
        return quantile * self.deviation * math.sqrt(1 / bursts + 1 / others)


def medians(trial: Trial, cost: Cost) -> list[float]:
    """Log of the median cost of every burst of a trial that gave figures, in order."""
    costs = [cost(outcome) for outcome in trial.outcomes if outcome.ok]
    return [math.log(median(steps)) for steps in costs if steps and median(steps) > 0]


def measure_noise(trials: Sequence[Trial], cost: Cost) -> Noise:
    """Pooled over every repeated trial, with the prior standing in while there are few."""
    prior = max(PINNED, _prior(trials, cost))
    groups = [group for trial in trials if len(group := medians(trial, cost)) > 1]
    squares = sum((value - fmean(group)) ** 2 for group in groups for value in group)
    repeats = sum(len(group) - 1 for group in groups)
    freedom = PRIOR_WEIGHT + repeats
    return Noise(deviation=math.sqrt((PRIOR_WEIGHT * prior**2 + squares) / freedom), freedom=freedom, repeats=repeats)


def measure_local_noise(trials: Sequence[Trial], cost: Cost) -> Noise:
    """The noise between bursts that follow each other, from successive differences of repeats (von Neumann): a slow
    drift of the machine, which interleaving cancels, is left out."""
    noise = measure_noise(trials, cost)
    steps = [after - before for trial in trials for before, after in pairwise(medians(trial, cost))]
    squares = sum(step**2 for step in steps) / 2
    prior = max(PINNED, _prior(trials, cost))
    return Noise(
        deviation=math.sqrt((PRIOR_WEIGHT * prior**2 + squares) / noise.freedom),
        freedom=noise.freedom,
        repeats=noise.repeats,
    )


def _prior(trials: Sequence[Trial], cost: Cost) -> float:
    """What the steps inside the bursts say of a burst's median."""
    errors = [median_error(cost(outcome)) for trial in trials for outcome in trial.outcomes if outcome.ok]
    return median(errors) if errors else 0.0
