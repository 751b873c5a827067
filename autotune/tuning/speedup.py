"""Computes the throughput ratio of two trials and its interval, which includes the noise between bursts.

The loop, `run`, `status`, the report, `studies` and every export show these figures; no other code computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from policies.noise import Noise, t_quantile, wall_clock_cost
from policies.trial import Status, Trial

# First version whose interval includes the noise between bursts. Development versions before it resampled the steps of
# one burst per side only; a study of theirs, read again, has a wider interval than its report had.
INTERVAL_SINCE = "0.1.0"
CONFIDENCE = 0.95  # two-sided
MIN_BURSTS = 2  # per side; with fewer the interval rests on the repeats of other trials and is provisional


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """A throughput ratio; `low` and `high` are its 95 % interval."""

    value: float
    low: float
    high: float
    bursts: int  # bursts of the trial that have step times
    over_bursts: int  # bursts with step times of the trial it is compared with

    @property
    def provisional(self) -> bool:
        """Returns True if a side has fewer than two bursts."""
        return min(self.bursts, self.over_bursts) < MIN_BURSTS


def speedup(trial: Trial, *, over: Trial, trials: Sequence[Trial]) -> Speedup | None:
    """Returns the throughput ratio and its interval; None if either has no step times, or if their bursts were of
    different sizes. `trials` are all of the study: the noise between bursts is pooled over their repeats."""
    value = throughput_ratio(trial, over)
    if value is None or trial.fidelity != over.fidelity:
        return None
    trials = [each for each in trials if each.fidelity == trial.fidelity]
    if trial.number == over.number:
        count = len(_costs(trial))
        return Speedup(value=1.0, low=1.0, high=1.0, bursts=count, over_bursts=count)
    noise = Noise(trials=trials)
    error = math.sqrt(noise.variance_of(trial) + noise.variance_of(over))
    band = t_quantile(noise.between_bursts().measured_freedom, (1 + CONFIDENCE) / 2) * error
    return Speedup(
        value=value,
        low=value * math.exp(-band),
        high=value * math.exp(band),
        bursts=len(_costs(trial)),
        over_bursts=len(_costs(over)),
    )


def obtained(trial: Trial, parent: Trial | None, trials: Sequence[Trial]) -> Speedup | None:
    """Returns the speed-up over the parent; None if one of them did not run. The noise is that of all `trials`."""
    ran = (Status.OK, Status.NOOP)
    if parent is None or trial.status not in ran or parent.status not in ran:
        return None
    return speedup(trial, over=parent, trials=trials)


def throughput_ratio(trial: Trial, over: Trial) -> float | None:
    """Returns the throughput of `trial` over that of `over`, by the medians of their bursts' medians; None if either
    has no step times."""
    ours, theirs = _costs(trial), _costs(over)
    return median(theirs) / median(ours) if ours and theirs else None


def _costs(trial: Trial) -> list[float]:
    costs = (wall_clock_cost(outcome) for outcome in trial.outcomes if outcome.ok)
    return [median(steps) for steps in costs if steps and median(steps) > 0]
