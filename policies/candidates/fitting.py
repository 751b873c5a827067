"""Candidates that make a recipe fit: the cheapest set of fixes that is predicted to fit, in one step.

A uniform-cost search over sets of fixes, each taken at most once and in the phase's order; the cost of a set is the
step time that its fixes are known to cost. Every set is predicted as a whole, so memory need not fall with every
fix. If no set is predicted to fit, those with the highest P(fits) are tried a few times, and then the phase ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

from policies.candidates.knowledge import Knowledge
from policies.changes.fix import Fix
from policies.changes.legality import Refusal, derive
from policies.constants import constant
from policies.fixes import FITTING, FIXES, LAST_RESORTS
from policies.search.acquisition import CONFIDENT_FIT_PROBABILITY
from policies.trial import Phase, Status
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe

FIT_SETS = int(constant("fit_sets"))
ALTERNATIVE_COST = constant("fit_alternative_cost")
HOPELESS_TRIALS = int(constant("hopeless_trials"))
AT_ONCE = 16  # sets whose memory is estimated in one call, which takes little longer than for a single set

_Set = tuple[Recipe, tuple[Fix, ...], float]  # a recipe, the fixes that made it, and their cost


@dataclass(frozen=True, kw_only=True)
class FitSet:
    """A set of fixes applied to a recipe that does not fit: the recipe, its cost in step time (a fraction) and its
    P(fits). `is_confident` is true if P(fits) is high enough to run it confidently."""

    recipe: Recipe
    fixes: tuple[Fix, ...]
    cost: float
    fits_probability: float

    @property
    def is_confident(self) -> bool:
        return self.fits_probability >= CONFIDENT_FIT_PROBABILITY


def cheapest_fit(knowledge: Knowledge) -> FitSet | None:
    """Returns the cheapest set of fixes that confidently fits, else the one with the highest P(fits); None if nothing
    is left to try. Uses offload only as a last resort."""
    sets: list[FitSet] = []
    for names in (FITTING, FITTING + LAST_RESORTS):
        sets = []
        untried = _sets(knowledge, [FIXES[name] for name in names])
        while group := list(islice(untried, AT_ONCE)):
            judged = _judged(group, knowledge)
            confident = next((each for each in judged if each.is_confident), None)
            if confident is not None:
                return confident
            sets += judged
    spent = sum(
        trial.proposal.phase is Phase.FIT and trial.status is Status.OOM and trial.proposal.parent is not None
        for trial in knowledge.trials
    )
    if spent >= HOPELESS_TRIALS or not sets:
        return None
    return max(sets, key=lambda each: (each.fits_probability, -each.cost))


def _judged(sets: Sequence[_Set], knowledge: Knowledge) -> list[FitSet]:
    """Returns the sets with their P(fits), in their order."""
    fits = knowledge.surrogate.memory.fits(tabulate([recipe for recipe, _, _ in sets]))
    return [
        FitSet(recipe=recipe, fixes=fixes, cost=cost, fits_probability=float(chance))
        for (recipe, fixes, cost), chance in zip(sets, fits, strict=True)
    ]


def _sets(knowledge: Knowledge, fixes: Sequence[Fix]) -> Iterator[_Set]:
    """Yields untried sets of fixes, cheapest first."""
    order = count()
    queue: list[tuple[float, int, int, Recipe, tuple[Fix, ...]]] = [(0.0, next(order), 0, knowledge.recipe, ())]
    seen = {knowledge.recipe.digest()}
    looked_at = 0
    while queue and looked_at < FIT_SETS:
        cost, _, start, recipe, taken = heapq.heappop(queue)
        looked_at += 1
        if taken and not knowledge.avoid.excludes(recipe):
            yield recipe, taken, cost
        situation = replace(knowledge.situation, recipe=recipe)
        for at in range(start, len(fixes)):
            if fixes[at].precondition(situation):
                continue
            for rank, changes in enumerate(fixes[at].changes(situation)):
                derived = _derived(recipe, changes, seen)
                if derived is None:
                    continue
                price = fixes[at].slowdown * (1 + ALTERNATIVE_COST * rank)
                heapq.heappush(queue, (cost + price, next(order), at + 1, derived, (*taken, fixes[at])))


def _derived(recipe: Recipe, changes: dict[str, Any], seen: set[str]) -> Recipe | None:
    derived = derive(recipe, changes)
    if isinstance(derived, Refusal) or derived.digest() in seen:
        return None
    seen.add(derived.digest())
    return derived
