"""Is a candidate better than the best so far? Pure: trials in, a verdict with its reason out.

Wall-clock time decides. A gain is accepted at once when it is far beyond the noise; a smaller one asks for
interleaved repeats (best, candidate, best, candidate), and then has to hold in every pair. On a machine so
busy that wall-clock time says little, the CPU time of the ranks, which a neighbour moves far less, may decide
instead, and the reason says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median
from typing import Any

from autotune.tuning.losses import disagreement
from policies.noise import FIRST_LOOK_CONFIDENCE, PAIRS_CONFIDENCE, Cost, Noise, cpu_cost, medians, wall_cost
from policies.reason import Reason, ReasonKind
from policies.trial import Z_90, Prediction, Status, Trial, Verdict

# Relative deviation of a burst's median, by its own steps, above which the first recipe is measured twice (judged)
STEADY = 0.02
# Wall time is called noisy when its band is this many times that of CPU time (judged)
NOISY = 2.0

# A gain is worth a pair of repeats (two bursts) when it is at least this part of the band: more after each look.
MIN_PART_OF_BAND = {1: 0.25, 2: 0.5}

# How likely a gain must be one, by prediction and measurement together. Of 31 that the estimate had predicted and that
# were 0.8 to 0.95 likely on simulated clusters 29 were gains, by 0.6 % on average
MIN_GAIN_PROBABILITY = 0.8
# Most settings that only publications tell of do nothing: of such a fifth would pass 0.8, and a twelfth this. What a
# neighbour gives CPU ranks looks like a gain too often, too
MIN_GAIN_PROBABILITY_WEAK = 0.95


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`again`: the verdict would be surer after one more interleaved pair of bursts."""

    verdict: Verdict
    reason: Reason
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Candidate over best in one measure: gain and noise band as log ratios of cost. `pairs` counts the interleaved
    pairs that the gain is the mean of; 0 where it is that of the medians of all bursts."""

    log_gain: float
    band: float
    pairs: int
    bursts: int
    against_bursts: int
    pairs_agree: bool

    @property
    def clear(self) -> bool:
        return self.log_gain > self.band

    @property
    def figures(self) -> dict[str, Any]:
        """As a reason has them: gain and band are fractions of throughput."""
        return {
            "gain": math.expm1(self.log_gain),
            "band": math.expm1(self.band),
            "pairs": self.pairs,
            "bursts": self.bursts,
            "against_bursts": self.against_bursts,
            "pairs_agree": self.pairs_agree,
        }


def judge(candidate: Trial, *, against: Trial | None, trials: Sequence[Trial]) -> Judgement:
    """The verdict on `candidate` against the best so far; `against` is None while no recipe has run.

    `trials` are all that were measured, the candidate included: the noise is taken from their repeats. The
    first recipe that runs is measured twice where its steps scatter, because everything after it is weighed by how
    far the two lie apart.
    """
    if candidate.status is not Status.OK:
        return Judgement(verdict=Verdict.REJECTED, reason=_failure(candidate))
    if against is None:
        once = len(candidate.outcomes) == 1 and Noise(trials=trials).between_bursts().deviation > STEADY
        return Judgement(verdict=Verdict.ACCEPTED, reason=Reason(kind=ReasonKind.FIRST_TO_RUN), again=once)
    if parted := disagreement(candidate, against):
        return Judgement(verdict=Verdict.REJECTED, reason=Reason(kind=ReasonKind.LOSSES_DIVERGE, figures=parted))
    wall = _compare(candidate, against, Noise(trials=trials, cost=wall_cost))
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


def _with_prediction(
    candidate: Trial, best: Trial, wall: Comparison, trials: Sequence[Trial], figures: Mapping[str, Any]
) -> Judgement | None:
    """A gain within the noise that was predicted: prediction and measurement together, each by its precision. None
    where nothing was predicted with an interval, or where the two contradict each other: then neither supports the
    other. One that stays open is measured again at the end."""
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


def _log_interval(predicted: Prediction) -> tuple[float, float] | None:
    """(mean, standard deviation) of the predicted log gain; None without an interval."""
    if predicted.gain is None or predicted.gain_low is None or predicted.gain_high is None:
        return None
    if predicted.gain_high <= predicted.gain_low:
        return None
    spread = (math.log1p(predicted.gain_high) - math.log1p(predicted.gain_low)) / (2 * Z_90)
    return math.log1p(predicted.gain), spread


def _weigh(candidate: Trial, wall: Comparison, cpu: Comparison | None, figures: Mapping[str, Any]) -> Judgement:
    bursts = sum(outcome.ok for outcome in candidate.outcomes)
    if wall.clear and wall.pairs_agree:
        how = ReasonKind.INTERLEAVED_REPEATS if bursts > 1 else ReasonKind.FAR_BEYOND_NOISE
        return Judgement(verdict=Verdict.ACCEPTED, reason=Reason(kind=how, figures=figures))
    if bursts > 1 and _cpu_decides(wall, cpu):
        return Judgement(verdict=Verdict.ACCEPTED, reason=Reason(kind=ReasonKind.CPU_TIME, figures=figures))
    if wall.log_gain <= 0 and not (cpu and cpu.clear and wall.log_gain > -wall.band):
        return Judgement(verdict=Verdict.REJECTED, reason=Reason(kind=ReasonKind.NO_GAIN, figures=figures))
    part = max(wall.log_gain / wall.band, cpu.log_gain / cpu.band if cpu else 0.0)
    return Judgement(
        verdict=Verdict.INCONCLUSIVE,
        reason=Reason(kind=ReasonKind.WITHIN_NOISE, figures=figures),
        again=part >= MIN_PART_OF_BAND.get(bursts, math.inf),
    )


def _cpu_decides(wall: Comparison, cpu: Comparison | None) -> bool:
    """Where wall-clock time says too little, also of its own pairs, the steadier measure does, if wall-clock time does
    not object on average."""
    if cpu is None or wall.log_gain <= 0:
        return False
    return cpu.clear and cpu.pairs_agree and wall.band > NOISY * cpu.band


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
    """(best, candidate) log costs of bursts that followed each other: the pairs a drift of the machine cannot
    tell apart."""
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
