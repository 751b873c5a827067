"""How many times the throughput of another trial one has, with an interval that holds the noise between bursts.

The one place for it: the loop, `run`, `status`, the report, `studies` and every export show these figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from policies.noise import Noise, student, wall_cost
from policies.trial import Status, Trial

# The version since which the interval holds the noise between bursts. Development versions before it resampled the
# steps of one burst a side only, and a study of theirs that is read again shows a wider interval than its report did.
INTERVAL_SINCE = "0.1.0"
CONFIDENCE = 0.95  # two-sided
MIN_BURSTS = 2  # a side; with fewer the interval rests on the repeats of other trials: provisional


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """How many times the throughput; low and high are the 95 % interval."""

    value: float
    low: float
    high: float
    bursts: int  # of the trial, with figures
    over_bursts: int  # of the trial it is compared with

    @property
    def provisional(self) -> bool:
        """True below two bursts a side."""
        return min(self.bursts, self.over_bursts) < MIN_BURSTS


def speedup(trial: Trial, *, over: Trial, trials: Sequence[Trial]) -> Speedup | None:
    """The ratio of throughput and its interval; None where either gave no step times. `trials` are all of the study:
    the noise between bursts is pooled over their repeats."""
    value = throughput_ratio(trial, over)
    if value is None:
        return None
    if trial.number == over.number:
        count = len(_costs(trial))
        return Speedup(value=1.0, low=1.0, high=1.0, bursts=count, over_bursts=count)
    noise = Noise(trials=trials)
    error = math.sqrt(noise.variance_of(trial) + noise.variance_of(over))
    band = student(noise.between_bursts().measured_freedom, (1 + CONFIDENCE) / 2) * error
    return Speedup(
        value=value,
        low=value * math.exp(-band),
        high=value * math.exp(band),
        bursts=len(_costs(trial)),
        over_bursts=len(_costs(over)),
    )


def obtained(trial: Trial, parent: Trial | None, trials: Sequence[Trial]) -> Speedup | None:
    """Returns the throughput over the parent's, where both ran; the noise is that of all `trials`."""
    ran = (Status.OK, Status.NOOP)
    if parent is None or trial.status not in ran or parent.status not in ran:
        return None
    return speedup(trial, over=parent, trials=trials)


def throughput_ratio(trial: Trial, over: Trial) -> float | None:
    """Throughput of `trial` in that of `over`, each the median of its bursts' medians; None where either has no step
    times."""
    ours, theirs = _costs(trial), _costs(over)
    return median(theirs) / median(ours) if ours and theirs else None


def _costs(trial: Trial) -> list[float]:
    costs = (wall_cost(outcome) for outcome in trial.outcomes if outcome.ok)
    return [median(steps) for steps in costs if steps and median(steps) > 0]
