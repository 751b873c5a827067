"""Chooses which changes of a tuned recipe to take out next, and finds those that cost nothing, from the bursts alone.

The model is that of a bisection (`policies.bisect.posterior`) between the tuned recipe and the one as given. Every
change has an effect around the predicted one; where the estimate sees none, it has either next to no effect or one of a
few percent. Any change, or a few of them only together, may also have an effect that was not predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from policies.ablation.parts import COSTS_NOTHING
from policies.bisect.posterior import Posterior, SmallEffects, fit_posterior
from policies.bisect.question import Effect, Observation, Question, Subset, effect_of, log_costs
from policies.bisect.terms import Terms, flags
from policies.constants import constant

LIMIT = constant("ablation_limit")
EFFECT = constant("ablation_effect_deviation")
CONFIDENCE = constant("ablation_confidence")
MIN_EXPECTED = constant("ablation_least_expected")
BURSTS_EACH = 2  # bursts of a reduced recipe before it replaces the tuned one, budget permitting: one may be an outlier
EMPTY: Subset = frozenset()


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A set of changes to take out, and its cost.

    `nothing` is the probability that the cost is at most COSTS_NOTHING, `bearable` that it is at most LIMIT.
    """

    taken: Subset
    effect: Effect
    nothing: float
    bearable: float

    @property
    def is_sure(self) -> bool:
        return self.nothing >= 0.5 and self.bearable >= CONFIDENCE


@dataclass(frozen=True, kw_only=True)
class AblationStep:
    """The state of an ablation after some bursts.

    `confirmed` is the largest removal that the bursts confirm, `next_removal` the one to run next; None if there is
    none. If `repeat_tuned`, the tuned recipe runs again instead, since it has fewer bursts.
    """

    confirmed: Removal | None
    next_removal: Removal | None
    repeat_tuned: bool


def ablation_step(question: Question, terms: Terms, small: SmallEffects, seen: Sequence[Observation]) -> AblationStep:
    """Returns the removal that the bursts so far confirm, and the one to run next.

    Pure: the same bursts give the same step.
    """
    measured = [each for each in seen if each.log_cost is not None]
    costs = [each.log_cost for each in measured if each.log_cost is not None]
    subsets = flags([each.subset for each in measured], len(question.guilt))
    posterior = fit_posterior(terms, subsets, costs, deviation=question.deviation, small=small, scale=EFFECT)
    counts = {each.subset: len(log_costs(seen, each.subset)) for each in measured}
    found = _removals(posterior, list(_considered(question, posterior, seen)))
    sure = [each for each in found if each.is_sure and counts.get(each.taken)]
    confirmed = max(sure, key=lambda each: (len(each.taken), each.nothing), default=None)
    ask = _next(found, confirmed, counts)
    again = ask is not None and counts.get(ask.taken, 0) > counts.get(EMPTY, 0)
    return AblationStep(confirmed=confirmed, next_removal=ask, repeat_tuned=again)


def _next(found: Sequence[Removal], confirmed: Removal | None, counts: Mapping[Subset, int]) -> Removal | None:
    """Returns the removal with the highest expected number of changes beyond the confirmed ones; None if it is too low.

    A confirmed removal runs BURSTS_EACH times first.
    """
    if confirmed is not None and counts[confirmed.taken] < BURSTS_EACH:
        return confirmed
    gone = len(confirmed.taken) if confirmed else 0
    larger = [each for each in found if len(each.taken) > gone]
    best = max(larger, key=lambda each: each.nothing * (len(each.taken) - gone), default=None)
    return best if best is not None and best.nothing * (len(best.taken) - gone) >= MIN_EXPECTED else None


def _considered(question: Question, posterior: Posterior, seen: Sequence[Observation]) -> Iterator[Subset]:
    """Yields removals worth considering: changes by descending probability of costing nothing (each prefix), single
    changes, removals that ran and those one change away from them. Adds the changes that the rules require; leaves out
    removals that contain one that failed."""
    failed = [each.subset for each in seen if each.symptom is not None]
    single = [frozenset({each}) for each in sorted(question.all)]
    chance = {removal.taken: removal.nothing for removal in _removals(posterior, single)}
    open_to = (each for each in single if question.closed(each) is not None and each not in failed)
    free = sorted(open_to, key=lambda each: -chance[each])
    found = [frozenset[int]().union(*free[:cut]) for cut in range(1, len(free) + 1)] + free
    for ran in dict.fromkeys(each.subset for each in seen):
        found += [ran, *(ran - each for each in free), *(ran | each for each in free)]
    for subset in dict.fromkeys(question.closed(each) for each in dict.fromkeys(found)):
        if subset and not any(each <= subset for each in failed):
            yield subset


def _removals(posterior: Posterior, subsets: Sequence[Subset]) -> list[Removal]:
    if not subsets:
        return []
    rows = flags(subsets, posterior.subsets.shape[1])
    (middle, spread), (mean, deviation) = posterior.cost(rows), posterior.relative_to_a(rows)
    apart = np.maximum(deviation, 1e-9)
    nothing, bearable = (posterior.probability @ ndtr((limit - mean) / apart) for limit in (COSTS_NOTHING, LIMIT))
    return [
        Removal(
            taken=subset,
            effect=effect_of(tuple(sorted(subset)), float(middle[at]), float(spread[at])),
            nothing=float(nothing[at]),
            bearable=float(bearable[at]),
        )
        for at, subset in enumerate(subsets)
    ]


def figures_of(effect: Effect) -> tuple[float, float, float]:
    """Returns (log cost, low, high) of an effect, with its 90 % interval."""
    assert effect.log_cost is not None
    assert effect.low is not None
    assert effect.high is not None
    return effect.log_cost, effect.low, effect.high
