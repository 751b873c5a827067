"""The acquisition: expected improvement of log throughput × feasibility under the surrogate.

Shapes: N candidates of a table. A `log_gain` is the log ratio of throughput to the incumbent's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr  # scipy.stats has it too, and takes a third of a second to import

from policies.constants import constant
from policies.search.avoid import Avoid
from policies.surrogate.surrogate import Surrogate
from policies.surrogate.time import ClosedForm
from policies.trial import Z_90, Status, Trial
from trainer.estimate.candidates import Candidates, Floats

MIN_FIT_PROBABILITY = constant("min_fit_probability")
OOM_CAUTION = constant("oom_caution")
CONFIDENT_FIT_PROBABILITY = constant("confident_fit_probability")
FEASIBILITY_POWER = constant("feasibility_power")
LOSING_DEVIATIONS = constant("losing_deviations")
NOISE_SHARE = constant("noise_share")
UNSURE_PENALTY = -100.0  # added to the log score of candidates that may not fit: larger than any log step


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of N candidates, [N] each; they are ranked by `score`.

    `log_step` is the log of seconds while nothing runs, else the log ratio of step time to the incumbent's. `noise` is
    the standard deviation that a busy machine adds to the log ratio of two bursts, 0 on GPUs.
    """

    log_step: Floats
    deviation: Floats
    fits_probability: Floats
    expected_improvement: Floats
    score: Floats
    noise: float


def min_fit_probability(trials: Sequence[Trial]) -> float:
    """Returns the P(fits) that a recipe needs to be worth a burst.

    It rises with each proposal that ran out of memory, since the surrogate was too confident.
    """
    ran_out = sum(trial.status is Status.OOM and trial.proposal.parent is not None for trial in trials)
    return float(1 - (1 - MIN_FIT_PROBABILITY) * OOM_CAUTION**ran_out)


def score_first(table: Candidates, surrogate: Surrogate, avoid: Avoid) -> Scores:
    """Scores candidates while nothing runs: the fastest of those that confidently fit first, then by P(fits)."""
    log_step, deviation = surrogate.time.predict(table)
    fits = surrogate.memory.fits(table)
    unsure = np.where(fits >= CONFIDENT_FIT_PROBABILITY, 0.0, np.log(np.maximum(fits, 1e-12)) + UNSURE_PENALTY)
    return Scores(
        log_step=log_step,
        deviation=deviation,
        fits_probability=fits,
        expected_improvement=np.zeros_like(log_step),
        score=unsure - log_step + np.log(avoid.trust(table)),
        noise=surrogate.time.noise,
    )


def score(table: Candidates, incumbent: ClosedForm, surrogate: Surrogate, avoid: Avoid, *, min_fit: float) -> Scores:
    """Scores candidates against the incumbent: expected improvement × P(fits) to FEASIBILITY_POWER × trust; 0 where
    P(fits) is below `min_fit` or a loss is predicted by more than LOSING_DEVIATIONS."""
    fits = surrogate.memory.fits(table)
    log_step, deviation = surrogate.time.difference(surrogate.time.closed_form(table), incumbent)
    z = -log_step / deviation
    feasible = np.where((fits >= min_fit) & (z >= -LOSING_DEVIATIONS), fits**FEASIBILITY_POWER, 0.0)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    improvement = deviation * (density + z * ndtr(z)) * feasible * avoid.trust(table)
    return Scores(
        log_step=log_step,
        deviation=deviation,
        fits_probability=fits,
        expected_improvement=improvement,
        score=improvement,
        noise=surrogate.time.noise,
    )


def unscored(count: int) -> Scores:
    """Returns neutral scores, for candidates that are not ranked by the acquisition."""
    nothing = np.zeros(count)
    certain = np.ones(count)
    return Scores(
        log_step=nothing,
        deviation=np.full(count, np.inf),
        fits_probability=certain,
        expected_improvement=nothing,
        score=nothing,
        noise=0.0,
    )


def is_lost_in_noise(noise: float, *, expected: float, most: float) -> bool:
    """Returns true if two bursts could hardly show a candidate's gain: neither the expected log gain nor the largest
    possible one. `noise` is the standard deviation of the log ratio of two bursts."""
    band = Z_90 * noise
    return expected < NOISE_SHARE * band and most < band


def gain_interval(log_gain: float, deviation: float, noise: float) -> tuple[float, float, float]:
    """Returns (expected, low, high) gain as fractions of throughput; low and high are the 90 % interval of a measured
    gain."""
    half = Z_90 * math.hypot(deviation, noise)
    expected, low, high = (math.expm1(log_gain + sign * half) for sign in (0, -1, 1))
    return expected, low, high
