"""Chooses which changes of a tuned recipe to take out next, and which of them cost nothing, from the bursts alone.

The model is that of a bisection (`policies.bisect.posterior`) between the tuned recipe and the one as given: every
change has a small effect around its predicted one, and any of them, or two only together, may have a large one that no
prediction knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from policies.ablation.parts import COSTS_NOTHING
from policies.bisect.posterior import Posterior, Small, fit_posterior
from policies.bisect.question import Effect, Question, Seen, Subset, log_costs
from policies.bisect.terms import Terms, flags
from policies.constants import constant
from policies.trial import Z_90
from trainer.estimate.candidates import Floats

LIMIT = constant("ablation_limit")
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
    posterior = fit_posterior(terms, subsets, costs, deviation=question.deviation, small=small)
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
    single = [frozenset({each}) for each in sorted(question.all)]
    chance = {removal.taken: removal.nothing for removal in _removals(posterior, single)}
    free = [each for each in sorted(single, key=lambda each: -chance[each]) if question.closed(each) is not None]
    found = [frozenset[int]().union(*free[:cut]) for cut in range(1, len(free) + 1)] + free
    for ran in dict.fromkeys(each.subset for each in seen):
        found += [ran, *(ran - each for each in free), *(ran | each for each in free)]
    failed = [each.subset for each in seen if each.symptom is not None]
    closed = dict.fromkeys(question.closed(each) for each in dict.fromkeys(found))
    for subset in closed:
        if subset and not any(each <= subset for each in failed):
            yield subset


def _removals(posterior: Posterior, subsets: Sequence[Subset]) -> list[Removal]:
    if not subsets:
        return []
    mean, deviation = posterior.over_the_empty(flags(subsets, posterior.subsets.shape[1]))
    weights = posterior.probability
    middle: Floats = weights @ mean
    spread = np.sqrt(np.maximum(weights @ (deviation**2 + mean**2) - middle**2, 0.0))
    apart = np.maximum(deviation, 1e-9)
    nothing, bearable = (weights @ ndtr((limit - mean) / apart) for limit in (COSTS_NOTHING, LIMIT))
    return [
        Removal(
            taken=subset,
            effect=interval(tuple(sorted(subset)), float(middle[at]), float(spread[at])),
            nothing=float(nothing[at]),
            bearable=float(bearable[at]),
        )
        for at, subset in enumerate(subsets)
    ]


def interval(members: tuple[int, ...], log_cost: float, deviation: float) -> Effect:
    """Returns an effect with its 90 % interval."""
    half = Z_90 * deviation
    return Effect(members=members, log_cost=log_cost, low=log_cost - half, high=log_cost + half)


def figures_of(effect: Effect) -> tuple[float, float, float]:
    """Returns the log cost of an effect and its interval."""
    assert effect.log_cost is not None
    assert effect.low is not None
    assert effect.high is not None
    return effect.log_cost, effect.low, effect.high
