"""Chooses the measure of a bisection: wall-clock time, or the CPU time of CPU ranks.

On a machine shared with other programs wall-clock time may scatter more than a difference costs. CPU time then replaces
it, unless the two contradict each other. Waiting costs no CPU time, so CPU time never shows that B is not slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from autotune.tuning.judge import NOISY
from policies.bisect.question import MIN_EFFECT
from policies.bisect.slowdown import HIDING_NOISE, REPEATS
from policies.noise import (
    FIRST_LOOK_CONFIDENCE,
    QUIET_CPU_DEVIATION,
    Cost,
    Noise,
    cpu_cost,
    deviation_of_a_burst,
    median_error,
    medians,
    wall_clock_cost,
)
from policies.trial import Trial


class Measure(StrEnum):
    WALL = "wall"
    CPU = "cpu"

    @property
    def cost(self) -> Cost:
        return wall_clock_cost if self is Measure.WALL else cpu_cost

    def observed_deviation(self, trial: Trial) -> float:
        """Returns the relative standard deviation of a burst, from the steps of a trial."""
        if self is Measure.WALL:
            return deviation_of_a_burst(trial)
        return max(
            [QUIET_CPU_DEVIATION, *(median_error(cpu_cost(outcome)) for outcome in trial.outcomes if outcome.ok)]
        )


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """The log cost of B over A by one measure, its noise band, and the standard deviation of a burst."""

    log_cost: float
    band: float
    deviation: float


def measure_of(a: Trial | None, b: Trial | None, trials: Sequence[Trial]) -> Measure:
    """Returns CPU time if the repeats of A and B show that wall-clock time is too noisy and much noisier, that B takes
    more CPU time, and that wall-clock time does not contradict it; else wall-clock time."""
    if a is None or b is None or not a.recipe.hardware.is_cpu:
        return Measure.WALL
    wall, cpu = (_slowdown(a, b, trials, measure.cost) for measure in Measure)
    if wall is None or cpu is None or not all(_has_cpu_time(trial) for trial in trials):
        return Measure.WALL
    too_noisy = wall.deviation > max(HIDING_NOISE * MIN_EFFECT, NOISY * cpu.deviation)
    agree = abs(wall.log_cost - cpu.log_cost) < wall.band
    return Measure.CPU if too_noisy and agree and cpu.log_cost > cpu.band else Measure.WALL


def _slowdown(a: Trial, b: Trial, trials: Sequence[Trial], cost: Cost) -> Slowdown | None:
    """Returns the comparison of A and B by one measure; None until both were repeated."""
    here, there = medians(a, cost), medians(b, cost)
    if min(len(here), len(there)) < REPEATS:
        return None
    spread = Noise(trials=trials, cost=cost).between_bursts()
    band = spread.band(len(here), len(there), FIRST_LOOK_CONFIDENCE)
    return Slowdown(log_cost=fmean(there) - fmean(here), band=band, deviation=spread.deviation)


def _has_cpu_time(trial: Trial) -> bool:
    return all(any(outcome.cpu_us) for outcome in trial.outcomes if outcome.ok)
