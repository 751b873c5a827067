"""Decides whether a candidate is better than the best so far. Pure: trials in, a verdict with its reason out.

Wall-clock time decides. A gain far beyond the noise is accepted at once; a smaller one needs interleaved repeats (best,
candidate, best, candidate) and must hold in every pair. On a machine too busy for wall-clock time, the CPU time of the
ranks, which other processes change far less, may decide instead; the reason then says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median
from typing import Any

from autotune.tuning.losses import disagreement
from policies.constants import constant
from policies.noise import FIRST_LOOK_CONFIDENCE, PAIRS_CONFIDENCE, Cost, Noise, cpu_cost, medians, wall_clock_cost
from policies.reason import Reason, ReasonKind
from policies.trial import Z_90, Prediction, Status, Trial, Verdict

# Relative deviation of a burst's median, by its own steps, above which the first recipe is measured twice (judged)
STEADY = 0.02
# Wall-clock time is noisy when its band is this many times that of CPU time (judged)
NOISY = 2.0

MIN_FIT_PROBABILITY = constant("min_fit_probability")  # P(fits) at full size that a recipe measured by a proxy needs

# By bursts so far: minimum gain, as a part of the noise band, that justifies another pair of repeats (two bursts)
MIN_PART_OF_BAND = {1: 0.25, 2: 0.5}

# Minimum probability of a gain, prediction and measurement combined. On simulated clusters, 29 of 31 candidates that
# the estimate had predicted and that had a probability of 0.8 to 0.95 were gains, by 0.6 % on average
MIN_GAIN_PROBABILITY = 0.8
# For settings predicted only from publications, and for CPU ranks. Most such settings have no effect: a fifth of them
# would pass 0.8, a twelfth passes this. On CPUs, less load by other processes often looks like a gain, too
MIN_GAIN_PROBABILITY_WEAK = 0.95


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict and its reason. `again`: another interleaved pair of bursts may change the verdict."""

    verdict: Verdict
    reason: Reason
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Candidate against best in one measure: gain and noise band as log ratios of cost. `pairs` is the number of
    interleaved pairs that the gain is the mean of; 0 if it is the difference of the medians over all bursts."""

    log_gain: float
    band: float
    pairs: int
    bursts: int
    against_bursts: int
    pairs_agree: bool

    @property
    def is_clear(self) -> bool:
        return self.log_gain > self.band

    @property
    def figures(self) -> dict[str, Any]:
        """Returns the figures of a reason: gain and band are fractions of throughput."""
        return {
            "gain": math.expm1(self.log_gain),
            "band": math.expm1(self.band),
            "pairs": self.pairs,
            "bursts": self.bursts,
            "against_bursts": self.against_bursts,
            "pairs_agree": self.pairs_agree,
        }


def judge(
    candidate: Trial, *, against: Trial | None, trials: Sequence[Trial], at_full_size: Prediction | None = None
) -> Judgement:
    """Returns the verdict on `candidate` against the best so far; `against` is None while no recipe has run.

    A proxy is judged by the prediction `at_full_size` after its burst. `trials` are all measured trials, the candidate
    included: their repeats give the noise. The first recipe that runs is measured twice if its steps scatter, because
    the difference of the two is the noise of later comparisons.
    """
    if candidate.status is not Status.OK:
        return Judgement(verdict=Verdict.REJECTED, reason=_failure(candidate))
    trials = [trial for trial in trials if trial.fidelity == candidate.fidelity]
    if candidate.fidelity is not None:
        return _by_prediction(candidate, against, at_full_size or Prediction(), trials)
    if against is None:
        once = len(candidate.outcomes) == 1 and Noise(trials=trials).between_bursts().deviation > STEADY
        return Judgement(verdict=Verdict.ACCEPTED, reason=Reason(kind=ReasonKind.FIRST_TO_RUN), again=once)
    if differing := disagreement(candidate, against):
        return Judgement(verdict=Verdict.REJECTED, reason=Reason(kind=ReasonKind.LOSSES_DIVERGE, figures=differing))
    wall = _compare(candidate, against, Noise(trials=trials, cost=wall_clock_cost))
    if wall is None:
        return Judgement(verdict=Verdict.REJECTED, reason=Reason(kind=ReasonKind.NO_STEP_TIMES))
    cpu = _compare(candidate, against, Noise(trials=trials, cost=cpu_cost))
    figures = {"against": against.number, "wall": wall.figures, "cpu": cpu.figures if cpu else None}
    found = _weigh(candidate, wall, cpu, figures)
    if found.verdict is not Verdict.INCONCLUSIVE or candidate.proposal.parent != against.number:
        return found
    if candidate.recipe.hardware.is_cpu and cpu is not None and cpu.log_gain <= 0:
        return found  # wall-clock gain without CPU-time gain: likely contention
    return _with_prediction(candidate, against, wall, trials, figures) or found


def _by_prediction(candidate: Trial, best: Trial | None, predicted: Prediction, trials: Sequence[Trial]) -> Judgement:
    """Judges a proxy by its predicted gain at full size.

    If the best is of the same size, the figures also have the measured gain.
    """
    figures: dict[str, Any] = {
        "against": None if best is None else best.number,
        "fits_probability": predicted.fits_probability,
        "gain": predicted.gain,
        "gain_low": predicted.gain_low,
        "gain_high": predicted.gain_high,
    }
    if predicted.fits_probability is not None and predicted.fits_probability < MIN_FIT_PROBABILITY:
        return Judgement(verdict=Verdict.REJECTED, reason=Reason(kind=ReasonKind.NOT_PREDICTED_TO_FIT, figures=figures))
    if best is None:
        return Judgement(verdict=Verdict.ACCEPTED, reason=Reason(kind=ReasonKind.FIRST_TO_RUN, figures=figures))
    if best.fidelity == candidate.fidelity:
        if differing := disagreement(candidate, best):
            return Judgement(verdict=Verdict.REJECTED, reason=Reason(kind=ReasonKind.LOSSES_DIVERGE, figures=differing))
        wall = _compare(candidate, best, Noise(trials=trials, cost=wall_clock_cost))
        figures["wall"] = wall.figures if wall else None
    gain, high = predicted.gain, predicted.gain_high
    verdict = Verdict.INCONCLUSIVE
    if gain is not None and high is not None:
        verdict = Verdict.ACCEPTED if gain > 0 else Verdict.INCONCLUSIVE if high > 0 else Verdict.REJECTED
    return Judgement(verdict=verdict, reason=Reason(kind=ReasonKind.PREDICTED_AT_FULL_SIZE, figures=figures))


def _with_prediction(
    candidate: Trial, best: Trial, wall: Comparison, trials: Sequence[Trial], figures: Mapping[str, Any]
) -> Judgement | None:
    """Combines a predicted gain with a measured one within the noise, each weighted by its precision. None without a
    predicted interval, or if prediction and measurement contradict each other.

    An inconclusive trial is measured again at the end.
    """
    predicted = candidate.proposal.predicted
    interval = _log_interval(predicted)
    if interval is None:
        return None
    expected, spread = interval
    sides = 1 / len(medians(candidate)) + 1 / len(medians(best))
    noise = Noise(trials=trials).between_bursts().deviation * math.sqrt(sides)
    if abs(wall.log_gain - expected) > Z_90 * math.hypot(spread, noise):
        return None
    weights = spread**-2, noise**-2
    mean = (weights[0] * expected + weights[1] * wall.log_gain) / sum(weights)
    deviation = sum(weights) ** -0.5
    probability = NormalDist().cdf(mean / deviation)
    figures = {
        **figures,
        "predicted": predicted.gain,
        "predicted_low": predicted.gain_low,
        "predicted_high": predicted.gain_high,
        "together": math.expm1(mean),
        "together_half_width": math.expm1(Z_90 * deviation),
        "probability": probability,
    }
    weak = predicted.published or candidate.recipe.hardware.is_cpu
    if wall.log_gain > 0 and probability > (MIN_GAIN_PROBABILITY_WEAK if weak else MIN_GAIN_PROBABILITY):
        reason = Reason(kind=ReasonKind.WITHIN_PREDICTION, figures=figures)
        return Judgement(verdict=Verdict.ACCEPTED, reason=reason)
    reason = Reason(kind=ReasonKind.PREDICTION_UNDECIDED, figures=figures)
    return Judgement(verdict=Verdict.INCONCLUSIVE, reason=reason)


def gain_probability(predicted: Prediction) -> float:
    """Returns the probability that the gain is positive; 0 without a predicted interval."""
    interval = _log_interval(predicted)
    return 0.0 if interval is None else NormalDist().cdf(interval[0] / interval[1])


def _log_interval(predicted: Prediction) -> tuple[float, float] | None:
    """Returns (mean, standard deviation) of the predicted log gain; None without an interval."""
    if predicted.gain is None or predicted.gain_low is None or predicted.gain_high is None:
        return None
    if predicted.gain_high <= predicted.gain_low:
        return None
    spread = (math.log1p(predicted.gain_high) - math.log1p(predicted.gain_low)) / (2 * Z_90)
    return math.log1p(predicted.gain), spread


def _weigh(candidate: Trial, wall: Comparison, cpu: Comparison | None, figures: Mapping[str, Any]) -> Judgement:
    bursts = sum(outcome.ok for outcome in candidate.outcomes)
    if wall.is_clear and wall.pairs_agree:
        how = ReasonKind.INTERLEAVED_REPEATS if bursts > 1 else ReasonKind.FAR_BEYOND_NOISE
        return Judgement(verdict=Verdict.ACCEPTED, reason=Reason(kind=how, figures=figures))
    if bursts > 1 and _cpu_decides(wall, cpu):
        return Judgement(verdict=Verdict.ACCEPTED, reason=Reason(kind=ReasonKind.CPU_TIME, figures=figures))
    if wall.log_gain <= 0 and not (cpu and cpu.is_clear and wall.log_gain > -wall.band):
        return Judgement(verdict=Verdict.REJECTED, reason=Reason(kind=ReasonKind.NO_GAIN, figures=figures))
    part = max(wall.log_gain / wall.band, cpu.log_gain / cpu.band if cpu else 0.0)
    return Judgement(
        verdict=Verdict.INCONCLUSIVE,
        reason=Reason(kind=ReasonKind.WITHIN_NOISE, figures=figures),
        again=part >= MIN_PART_OF_BAND.get(bursts, math.inf),
    )


def _cpu_decides(wall: Comparison, cpu: Comparison | None) -> bool:
    """Returns whether CPU time accepts the candidate: its gain is above its noise band and positive in every pair, the
    wall-clock band is above NOISY times the CPU band, and the mean wall-clock gain is positive."""
    if cpu is None or wall.log_gain <= 0:
        return False
    return cpu.is_clear and cpu.pairs_agree and wall.band > NOISY * cpu.band


def _compare(candidate: Trial, best: Trial, noise: Noise) -> Comparison | None:
    ours, theirs = medians(candidate, noise.cost), medians(best, noise.cost)
    if not ours or not theirs:
        return None
    pairs = _interleaved(candidate, best, noise.cost)
    if len(ours) == 1 or not pairs:
        return Comparison(
            log_gain=median(theirs) - median(ours),
            band=noise.between_bursts().band(len(ours), len(theirs), FIRST_LOOK_CONFIDENCE),
            pairs=0,
            bursts=len(ours),
            against_bursts=len(theirs),
            pairs_agree=True,
        )
    gains = [there - here for there, here in pairs]
    return Comparison(
        log_gain=fmean(gains),
        band=noise.between_neighbours().band(len(pairs), len(pairs), PAIRS_CONFIDENCE),
        pairs=len(pairs),
        bursts=len(ours),
        against_bursts=len(theirs),
        pairs_agree=min(gains) > 0,
    )


def _interleaved(candidate: Trial, best: Trial, cost: Cost) -> list[tuple[float, float]]:
    """Returns (best, candidate) log costs of consecutive bursts, which a drift of the machine affects equally."""
    theirs = dict(zip(best.bursts, best.outcomes, strict=True))
    return [
        (math.log(median(cost(theirs[burst - 1]))), math.log(median(cost(outcome))))
        for burst, outcome in zip(candidate.bursts, candidate.outcomes, strict=True)
        if burst - 1 in theirs and outcome.ok and theirs[burst - 1].ok
    ]


def _failure(trial: Trial) -> Reason:
    failure = next((outcome.failure for outcome in trial.outcomes if outcome.failure), None)
    if failure is None:
        return Reason(kind=ReasonKind.DID_NOT_RUN, figures={"status": str(trial.status)})
    figures = {
        "failure": str(failure.kind),
        "phase": None if failure.phase is None else str(failure.phase),
        "rank": failure.rank,
        "evidence": failure.evidence,
    }
    return Reason(kind=ReasonKind.BURST_FAILED, figures=figures)
