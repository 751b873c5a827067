"""Chooses which changes of a tuned recipe to take out next, and which of them cost nothing, from the bursts alone.

The model is that of a bisection (`policies.bisect.posterior`) between the tuned recipe and the one as given: every
change has an effect around the one that the surrogate predicts, or, where it sees none, none or one of a percent or so;
any of them, or two only together, may have another that no prediction knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from policies.ablation.parts import COSTS_NOTHING
from policies.bisect.posterior import Posterior, Small, fit_posterior
from policies.bisect.question import Effect, Question, Seen, Subset, effect_of, log_costs
from policies.bisect.terms import Terms, flags
from policies.constants import constant

LIMIT = constant("ablation_limit")
EFFECT = constant("ablation_effect_deviation")
CONFIDENCE = constant("ablation_confidence")
LEAST_EXPECTED = constant("ablation_least_expected")
BURSTS_EACH = 2  # of a smaller recipe before it takes the tuned one's place, if the bursts allow: one may be odd
EMPTY: Subset = frozenset()


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Changes that are taken out, and their cost, with the probabilities that it is at most COSTS_NOTHING (`nothing`)
    and at most LIMIT (`bearable`)."""

    taken: Subset
    effect: Effect
    nothing: float
    bearable: float

    @property
    def is_sure(self) -> bool:
        return self.nothing >= 0.5 and self.bearable >= CONFIDENCE


@dataclass(frozen=True, kw_only=True)
class AblationStep:
    """The largest removal that the bursts confirm, and the one to run next; None if there is none.

    `repeat_tuned`: run the tuned recipe again instead, it has fewer bursts. `deviation` is that of a burst.
    """

    confirmed: Removal | None
    ask: Removal | None
    repeat_tuned: bool
    deviation: float


def ablation_step(question: Question, terms: Terms, small: Small, seen: Sequence[Seen]) -> AblationStep:
    """Returns what the bursts so far confirm, and what to run next. Pure: the same bursts give the same."""
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
    return AblationStep(confirmed=confirmed, ask=ask, repeat_tuned=again, deviation=posterior.deviation)


def _next(found: Sequence[Removal], confirmed: Removal | None, counts: Mapping[Subset, int]) -> Removal | None:
    """Returns the removal that is expected to take out most changes beyond those confirmed; None if that is too few."""
    if confirmed is not None and counts[confirmed.taken] < BURSTS_EACH:
        return confirmed
    gone = len(confirmed.taken) if confirmed else 0
    larger = [each for each in found if len(each.taken) > gone]
    best = max(larger, key=lambda each: each.nothing * (len(each.taken) - gone), default=None)
    return best if best is not None and best.nothing * (len(best.taken) - gone) >= LEAST_EXPECTED else None


def _considered(question: Question, posterior: Posterior, seen: Sequence[Seen]) -> Iterator[Subset]:
    """Yields subsets worth considering: cuts of the changes by their probability to cost nothing, single ones, and
    those around subsets that ran; none that contains one that failed."""
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
    (middle, spread), (mean, deviation) = posterior.cost(rows), posterior.over_the_empty(rows)
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
    """Returns the log cost of an effect and its interval."""
    assert effect.log_cost is not None
    assert effect.low is not None
    assert effect.high is not None
    return effect.log_cost, effect.low, effect.high
