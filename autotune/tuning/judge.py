"""Is a candidate better than the best so far? Pure: trials in, a verdict with its reason out.

Wall-clock time decides. A gain is believed at once when it is far beyond the noise; a smaller one asks for
interleaved repeats (best, candidate, best, candidate), and then has to hold in every pair. On a machine so
busy that wall-clock time says little, the CPU time of the ranks, which a neighbour moves far less, may decide
instead, and the verdict says so.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median

from autotune.looks.quantities import gain, percent
from autotune.tuning.losses import disagreement
from autotune.tuning.noise import Cost, cpu_cost, measure_local_noise, measure_noise, medians, wall_cost
from policies.trial import Z_90, Status, Trial, Verdict

STEADY = 0.02  # of a burst's median, by its own steps: above, the first recipe is measured twice
NOISY = 2.0  # wall time is called noisy when its band is this many times that of CPU time

# How a gain was told, in the words of its verdict, and what decided it
FAR, IN_PAIRS_OF_BURSTS, BY_CPU, AS_PREDICTED = (
    "decided by wall-clock time, far beyond the noise",
    "decided by wall-clock time, in interleaved repeats",
    "wall-clock time is too noisy, decided by CPU time",
    "within the prediction",
)
DECIDED = {
    FAR: "wall-clock time",
    IN_PAIRS_OF_BURSTS: "wall-clock time of interleaved bursts",
    BY_CPU: "CPU time of the ranks",
    AS_PREDICTED: "wall-clock time together with the prediction",
}

# A gain is worth a pair of repeats (two bursts) when it is at least this part of the band: more after each look.
HOPE = {1: 0.25, 2: 0.5}

# Of Student's t, one-sided: 0.5 % for a first look, which a drifting machine can fool; 1 % for interleaved pairs, which
# all have to agree too.
FIRST_LOOK = 0.995
# How likely a gain must be one, by prediction and measurement together. Of 31 that the estimate had predicted and that
# were 0.8 to 0.95 likely on simulated clusters 29 were gains, by 0.6 % on average
LIKELY = 0.8
# Most settings that only publications tell of do nothing: of such a fifth would pass 0.8, and a twelfth this. What a
# neighbour gives CPU ranks looks like a gain too often, too
LIKELIER = 0.95
IN_PAIRS = 0.99
LEAST_FREEDOM = 2  # with 1 no gain of a burst would ever be told


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`again`: the verdict would be surer after one more interleaved pair of bursts."""

    verdict: Verdict
    because: str
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Candidate over best in one measure: gain and noise band as log ratios of cost."""

    gain: float
    band: float
    pairs_agree: bool

    @property
    def clear(self) -> bool:
        return self.gain > self.band

    def __str__(self) -> str:
        return f"{gain(math.expm1(self.gain))} (noise ±{percent(math.expm1(self.band))})"


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """How many times the throughput; low and high are the 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def judge(candidate: Trial, *, against: Trial | None, trials: Sequence[Trial]) -> Judgement:
    """The verdict on `candidate` against the best so far; `against` is None while no recipe has run.

    `trials` are all that were measured, the candidate included: the noise is taken from their repeats. The
    first recipe that runs is measured twice where its steps scatter, because everything after it is weighed by how
    far the two lie apart.
    """
    if candidate.status is not Status.OK:
        return Judgement(verdict=Verdict.REJECTED, because=_failure(candidate))
    if against is None:
        once = len(candidate.outcomes) == 1 and measure_noise(trials, wall_cost).deviation > STEADY
        return Judgement(verdict=Verdict.ACCEPTED, because="the first recipe that runs", again=once)
    if parted := disagreement(candidate, against):
        return Judgement(verdict=Verdict.REJECTED, because=f"is labelled training-equivalent, but its {parted}")
    wall = _compare(candidate, against, trials, wall_cost)
    if wall is None:
        return Judgement(verdict=Verdict.REJECTED, because="the burst gave no step times")
    cpu = _compare(candidate, against, trials, cpu_cost)
    found = _weigh(candidate, wall, cpu)
    if found.verdict is not Verdict.INCONCLUSIVE or candidate.proposal.parent != against.number:
        return found
    if candidate.recipe.hardware.is_cpu and cpu is not None and cpu.gain <= 0:  # what a neighbour gave, it takes again
        return found
    return _expected(candidate, against, wall, trials) or found


def _expected(candidate: Trial, best: Trial, wall: Comparison, trials: Sequence[Trial]) -> Judgement | None:
    """A gain within the noise that was predicted: prediction and measurement together, each by its precision. None
    where nothing was predicted with an interval, or where the two contradict each other: then neither supports the
    other. One that stays open is measured again at the end."""
    predicted = candidate.proposal.predicted
    if predicted.gain is None or predicted.gain_low is None or predicted.gain_high is None:
        return None
    if predicted.gain_high <= predicted.gain_low:
        return None
    spread = (math.log1p(predicted.gain_high) - math.log1p(predicted.gain_low)) / (2 * Z_90)
    noise = measure_noise(trials, wall_cost).deviation
    noise *= math.sqrt(1 / len(medians(candidate, wall_cost)) + 1 / len(medians(best, wall_cost)))
    if abs(wall.gain - math.log1p(predicted.gain)) > Z_90 * math.hypot(spread, noise):
        return None
    weights = spread**-2, noise**-2
    mean = (weights[0] * math.log1p(predicted.gain) + weights[1] * wall.gain) / sum(weights)
    deviation = sum(weights) ** -0.5
    likely = NormalDist().cdf(mean / deviation)
    together = f"{gain(math.expm1(mean))} ± {percent(math.expm1(Z_90 * deviation))}, a gain by {percent(likely, 0)}"
    between = f"{gain(predicted.gain_low)} to {gain(predicted.gain_high)}"
    said = (
        f"wall-clock time {gain(math.expm1(wall.gain))}, predicted {gain(predicted.gain)} (90 %: {between}): "
        f"together {together}"
    )
    asked = LIKELIER if predicted.published or candidate.recipe.hardware.is_cpu else LIKELY
    if wall.gain > 0 and likely > asked:
        return Judgement(verdict=Verdict.ACCEPTED, because=f"{AS_PREDICTED}: {said}")
    return Judgement(verdict=Verdict.INCONCLUSIVE, because=f"no gain beyond the noise: {said}")


def decided_by(trial: Trial) -> str | None:
    """The measure that accepted it; None where nothing was compared."""
    return next((what for words, what in DECIDED.items() if trial.verdict_because.startswith(words)), None)


def noise_gain(trials: Sequence[Trial]) -> float:
    """The smallest gain (fraction of throughput) that two bursts per side could tell from noise."""
    noise = measure_noise(trials, wall_cost)
    return math.expm1(noise.band(2, 2, _student(noise.freedom, FIRST_LOOK)))


def gain_over(candidate: Trial, best: Trial) -> float | None:
    """Throughput gained by `candidate` over `best`, as a fraction; None where either has no step times."""
    ours, theirs = medians(candidate, wall_cost), medians(best, wall_cost)
    return math.expm1(median(theirs) - median(ours)) if ours and theirs else None


def speedup(best: Trial, *, over: Trial, seed: int = 0, draws: int = 1000) -> Speedup | None:
    """How much faster `best` is than `over`, with an interval that resamples bursts and the steps inside
    them."""
    ours, theirs = _bursts(best), _bursts(over)
    if not ours or not theirs:
        return None
    dice = random.Random(seed)
    ratios = sorted(_resampled(theirs, dice) / _resampled(ours, dice) for _ in range(draws))
    return Speedup(
        value=median(map(median, theirs)) / median(map(median, ours)),
        low=ratios[int(0.025 * draws)],
        high=ratios[int(0.975 * draws) - 1],
    )


def _weigh(candidate: Trial, wall: Comparison, cpu: Comparison | None) -> Judgement:
    bursts = sum(outcome.ok for outcome in candidate.outcomes)
    said = f"wall-clock time {wall}" + (f", CPU time {cpu}" if cpu else "")
    if wall.clear and wall.pairs_agree:
        how = IN_PAIRS_OF_BURSTS if bursts > 1 else FAR
        return Judgement(verdict=Verdict.ACCEPTED, because=f"{how}: {said}")
    if bursts > 1 and _cpu_decides(wall, cpu):
        return Judgement(verdict=Verdict.ACCEPTED, because=f"{BY_CPU}: {said}")
    if wall.gain <= 0 and not (cpu and cpu.clear and wall.gain > -wall.band):
        return Judgement(verdict=Verdict.REJECTED, because=f"no gain: {said}")
    hope = max(wall.gain / wall.band, cpu.gain / cpu.band if cpu else 0.0)
    return Judgement(
        verdict=Verdict.INCONCLUSIVE,
        because=f"no gain beyond the noise: {said}",
        again=hope >= HOPE.get(bursts, math.inf),
    )


def _cpu_decides(wall: Comparison, cpu: Comparison | None) -> bool:
    """Where wall-clock time says too little, also of its own pairs, the steadier measure does, if wall-clock time does
    not object on average."""
    if cpu is None or wall.gain <= 0:
        return False
    return cpu.clear and cpu.pairs_agree and wall.band > NOISY * cpu.band


def _compare(candidate: Trial, best: Trial, trials: Sequence[Trial], cost: Cost) -> Comparison | None:
    ours, theirs = medians(candidate, cost), medians(best, cost)
    if not ours or not theirs:
        return None
    pairs = _interleaved(candidate, best, cost)
    if len(ours) == 1 or not pairs:
        noise = measure_noise(trials, cost)
        band = noise.band(len(ours), len(theirs), _student(noise.freedom, FIRST_LOOK))
        return Comparison(gain=median(theirs) - median(ours), band=band, pairs_agree=True)
    noise = measure_local_noise(trials, cost)
    gains = [there - here for there, here in pairs]
    band = noise.band(len(pairs), len(pairs), _student(noise.freedom, IN_PAIRS))
    return Comparison(gain=fmean(gains), band=band, pairs_agree=min(gains) > 0)


def _interleaved(candidate: Trial, best: Trial, cost: Cost) -> list[tuple[float, float]]:
    """(best, candidate) log costs of bursts that followed each other: the pairs a drift of the machine cannot
    tell apart."""
    theirs = dict(zip(best.bursts, best.outcomes, strict=True))
    return [
        (math.log(median(cost(theirs[burst - 1]))), math.log(median(cost(outcome))))
        for burst, outcome in zip(candidate.bursts, candidate.outcomes, strict=True)
        if burst - 1 in theirs and outcome.ok and theirs[burst - 1].ok
    ]


def _failure(trial: Trial) -> str:
    failure = next((outcome.failure for outcome in trial.outcomes if outcome.failure), None)
    if failure is None:
        return f"the trial is {trial.status}"
    where = "" if failure.rank is None else f" on rank {failure.rank}"
    when = "" if failure.phase is None else f" in {failure.phase}"
    return f"{failure.kind}{when}{where}: {failure.evidence}"


def _student(freedom: int, share: float) -> float:
    from scipy.special import stdtrit  # here: commands that judge nothing start without SciPy

    return float(stdtrit(max(freedom, LEAST_FREEDOM), share))


def _bursts(trial: Trial) -> list[list[float]]:
    return [steps for outcome in trial.outcomes if outcome.ok and (steps := wall_cost(outcome))]


def _resampled(bursts: list[list[float]], dice: random.Random) -> float:
    drawn = dice.choices(bursts, k=len(bursts))
    return median(median(dice.choices(steps, k=len(steps))) for steps in drawn)
