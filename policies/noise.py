"""The one model of a study's noise: the difference between bursts of one recipe on this machine.

A burst is summarised by the median cost of its measured steps: microseconds of one GPU per token. Noise is how that
median moves from burst to burst, not the spread of steps inside one: a busy neighbour slows whole bursts. The few
repeats a study can pay for are pooled over all trials, with a weak prior from the steps themselves. The judge compares
trials by it, the policy decides by it what is worth a burst, and the interval of a speed-up is computed from it. The
surrogate weighs each trial by the trial's own noise: `deviation_of_a_burst`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from policies.constants import constant
from policies.trial import Trial
from trainer.burst import Outcome

Cost = Callable[[Outcome], list[float]]  # per measured step, microseconds per token

# Relative standard deviation between bursts on nodes that stay the same: Megatron-Bridge commit d2d9ad928 measured
# 0.3 % for repeats on pinned nodes; less than this is not assumed of any machine (rounded up, judged).
PINNED = 0.005
# Smallest half-spread of repeats, as a fraction of throughput: the same commit measured 2.2 % between allocations.
MIN_HALF_SPREAD = 0.015
# Half-spread assumed while no recipe was repeated, as a fraction of throughput: judged, twice MIN_HALF_SPREAD.
HALF_SPREAD_WITHOUT_REPEATS = 0.03
# Repeats that the prior counts for. With 2, a machine that drifts 3 % had 9 % of equal recipes accepted (simulated).
PRIOR_REPEATS = 1
# Least degrees of freedom of a comparison; judged: with 1 no gain of a first burst would ever be accepted, and the
# interval of a speed-up is useless (0.2 to 18 times). With one burst per side it holds the true one in 86 to 92 %
# if bursts differ by 2 to 7 %, in 95 % over all cases (benchmarks.speedup_coverage).
MIN_FREEDOM = 2
# Confidence of a verdict, one-sided, of Student's t (judged): a drifting machine can fool a first look; interleaved
# pairs all have to agree as well.
FIRST_LOOK_CONFIDENCE = 0.995
PAIRS_CONFIDENCE = 0.99
# Variance of the median of n normal values over that of their mean (order statistics); larger n: the limit, pi / 2.
MEDIAN_VARIANCE = {1: 1.0, 2: 1.0, 3: 1.346, 4: 1.193, 5: 1.434, 6: 1.288}
# deviation of a burst whose steps are stretched e-fold; it grows with the root of the stretch's log
STRETCHED_DEVIATION = constant("stretched_deviation")
QUIET_CPU_DEVIATION = constant("quiet_cpu_deviation")


def wall_clock_cost(outcome: Outcome) -> list[float]:
    """Returns microseconds of one GPU per token, by step."""
    scale = max(outcome.ranks, 1) / max(outcome.tokens_per_step, 1)
    return [us * scale for us in outcome.step_us]


def cpu_cost(outcome: Outcome) -> list[float]:
    """Returns microseconds of CPU time, all ranks together, per token, by step; empty if it was not measured."""
    scale = 1.0 / max(outcome.tokens_per_step, 1)
    return [us * scale for us in outcome.cpu_us] if any(outcome.cpu_us) else []


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The relative standard deviation of a burst's median, and its degrees of freedom (prior included)."""

    deviation: float
    freedom: int
    repeats: int  # bursts beyond the first of their trial

    @property
    def measured_freedom(self) -> int:
        """Returns degrees of freedom without the prior's, which is not a measurement; at least MIN_FREEDOM."""
        return max(MIN_FREEDOM, self.repeats)

    def band(self, bursts: int, others: int, confidence: float) -> float:
        """Returns how far apart the medians of `bursts` and of `others` bursts of one recipe may be, as a log ratio."""
        quantile = t_quantile(max(self.freedom, MIN_FREEDOM), confidence)
        return quantile * self.deviation * math.sqrt(1 / bursts + 1 / others)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise of a study by one measure of cost: `trials` are all that were measured."""

    trials: Sequence[Trial]
    cost: Cost = wall_clock_cost

    def between_bursts(self) -> Spread:
        """Returns the deviation between bursts, pooled over every repeated trial, with the prior counted as
        PRIOR_REPEATS repeats."""
        groups = [medians(trial, self.cost) for trial in self.trials]
        squares = sum((value - fmean(group)) ** 2 for group in groups if len(group) > 1 for value in group)
        return self._pooled(squares)

    def between_neighbours(self) -> Spread:
        """Returns the deviation between consecutive bursts, pooled from successive differences of repeats (von
        Neumann). It leaves out a slow drift of the machine, which interleaved pairs cancel."""
        steps = [after - before for trial in self.trials for before, after in pairwise(medians(trial, self.cost))]
        return self._pooled(sum(step**2 for step in steps) / 2)

    def half_spread(self) -> float:
        """Returns the relative half-spread of the throughput of repeated bursts, the median over repeated trials.

        A fix that could gain less is not worth a burst. It is narrower than the band of a verdict, since a burst costs
        less than a missed gain.
        """
        spreads = [
            (max(rates) - min(rates)) / 2 / median(rates) for trial in self.trials if len(rates := _rates(trial)) >= 2
        ]
        return max(MIN_HALF_SPREAD, median(spreads)) if spreads else HALF_SPREAD_WITHOUT_REPEATS

    def detectable_gain(self) -> float:
        """Returns the smallest gain (fraction of throughput) that two bursts per side could distinguish from noise."""
        return math.expm1(self.between_bursts().band(2, 2, FIRST_LOOK_CONFIDENCE))

    def variance_of(self, trial: Trial) -> float:
        """Returns the variance of the log of a trial's median cost over its bursts.

        Computed from the deviation between bursts, or from the scatter of the steps if that is larger.
        """
        errors = [median_error(self.cost(outcome)) for outcome in trial.outcomes if outcome.ok]
        own = fmean(error**2 for error in errors)
        spread = max(self.between_bursts().deviation ** 2, own)
        return spread * MEDIAN_VARIANCE.get(len(errors), math.pi / 2) / len(errors)

    def _pooled(self, squares: float) -> Spread:
        prior = max(PINNED, self._prior())
        repeats = sum(max(0, len(medians(trial, self.cost)) - 1) for trial in self.trials)
        freedom = PRIOR_REPEATS + repeats
        deviation = math.sqrt((PRIOR_REPEATS * prior**2 + squares) / freedom)
        return Spread(deviation=deviation, freedom=freedom, repeats=repeats)

    def _prior(self) -> float:
        """Returns the median relative error of a burst's median, estimated from its own steps."""
        errors = [median_error(self.cost(outcome)) for trial in self.trials for outcome in trial.outcomes if outcome.ok]
        return median(errors) if errors else 0.0


def medians(trial: Trial, cost: Cost = wall_clock_cost) -> list[float]:
    """Returns the log of the median cost of every burst of a trial that gave figures, in order."""
    costs = [cost(outcome) for outcome in trial.outcomes if outcome.ok]
    return [math.log(median(steps)) for steps in costs if steps and median(steps) > 0]


def throughput(trial: Trial) -> float | None:
    """Returns tokens/s/GPU: the median over the trial's bursts that gave figures; None without one."""
    figures = _rates(trial)
    return median(figures) if figures else None


def cpu_throughput(trial: Trial) -> float | None:
    """Returns tokens per microsecond of the ranks' CPU time, the median over bursts; None if CPU time was not measured.

    On a busy machine it is steadier than throughput.
    """
    figures = [o.tokens_per_step / median(o.cpu_us) for o in trial.outcomes if o.ok and any(o.cpu_us)]
    return median(figures) if figures else None


def median_error(steps: Sequence[float]) -> float:
    """Returns the relative standard error of the median of independent steps: 1.2533 σ/√n, with σ from the median
    absolute deviation; 0 for fewer than three steps."""
    if len(steps) < 3:
        return 0.0
    middle = median(steps)
    spread = 1.4826 * median(abs(step - middle) for step in steps)
    return 1.2533 * spread / middle / math.sqrt(len(steps)) if middle > 0 else 0.0


def deviation_of_a_burst(trial: Trial) -> float:
    """Returns the relative deviation of a burst's median: from the scatter of its steps, and at least the one between
    bursts on pinned nodes. On CPU ranks busy neighbours slow whole bursts; that adds a deviation, larger the more they
    stretch the steps."""
    ran = [outcome for outcome in trial.outcomes if outcome.ok]
    errors = [PINNED, *(median_error(outcome.step_us) for outcome in ran)]
    if not trial.recipe.hardware.is_cpu:
        return max(errors)
    errors += [STRETCHED_DEVIATION * math.sqrt(math.log(_stretched(outcome, _communicating(trial)))) for outcome in ran]
    return math.hypot(max(errors), QUIET_CPU_DEVIATION)


def deviation_of_a_traced_step(trial: Trial) -> float:
    """Returns the relative deviation of a traced step of CPU ranks; 0 on GPUs, where a traced step is like any
    other."""
    if not trial.recipe.hardware.is_cpu:
        return 0.0
    steps = [median_error(o.step_us) * math.sqrt(len(o.step_us)) for o in trial.outcomes if o.ok]
    return math.hypot(max(steps, default=0.0), deviation_of_a_burst(trial))


def t_quantile(degrees_of_freedom: int, probability: float) -> float:
    """Returns the quantile of Student's t at this probability."""
    from scipy.special import stdtrit  # imported here so that commands that compare nothing start without SciPy

    return float(stdtrit(degrees_of_freedom, probability))


def _rates(trial: Trial) -> list[float]:
    return [o.tokens_per_s_per_gpu for o in trial.outcomes if o.ok and o.tokens_per_s_per_gpu]


def _stretched(outcome: Outcome, communicating: float) -> float:
    """Returns the ratio of step time without communication to CPU time, at least 1; 1 where CPU time was not
    measured."""
    if not any(outcome.cpu_us):
        return 1.0
    computed = median(outcome.cpu_us) / max(outcome.ranks, 1) / median(outcome.step_us)
    return max((1 - communicating) / computed, 1.0)


def _communicating(trial: Trial) -> float:
    """Returns the share of exposed communication in the traced steps; 0 without a trace."""
    steps = [step for trace in trial.analysis.traces for step in trace.steps] if trial.analysis else []
    whole = sum(step.duration_us for step in steps)
    return sum(step.exposed_communication_us for step in steps) / whole if whole else 0.0
