"""Making a recipe fit: the cheapest set of fixes that is predicted to fit, in one step.

A uniform-cost walk over sets of fixes, each taken at most once and in the plan's order; the cost of a set is the
step time its fixes are known to cost. Every set is estimated whole, so memory need not fall with every fix. When
nothing is predicted to fit, the least hopeless recipes are tried a few times, and then the phase ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from policies.fix import Fix
from policies.fixes import FIXES
from policies.gate import Forecast
from policies.legality import Refusal, derive
from policies.phases import Plan
from policies.trial import Phase, Prediction, Proposal, Status
from policies.view import View
from policies.words import failure_in_words
from trainer.recipe import Recipe

# Sets looked at before the walk gives up; a few hundred cover every pair and most triples of fixes.
SETS = 400
# Later alternatives of one fix (more modules, more ranks) cost this much of the fix again, each.
ALTERNATIVE_COST = 0.5
# Bursts spent on recipes that are not predicted to fit, where nothing else is left: the forecast may be wrong.
HOPELESS_TRIALS = 3


@dataclass(frozen=True, kw_only=True)
class Step:
    """A set of fixes on top of the recipe that does not fit."""

    recipe: Recipe
    fixes: tuple[Fix, ...]
    cost: float
    forecast: Forecast


def propose_fit(view: View, plan: Plan) -> Proposal | None:
    """The next recipe on the way to one that fits; None when the best fits or nothing is left to try."""
    if not needs_room(view):
        return None
    steps: list[Step] = []
    for names in (plan.fixes, plan.fixes + plan.last_resorts):
        steps = []
        for step in _sets(view, [FIXES[name] for name in names]):
            if step.forecast.fits:
                return _proposal(view, step)
            steps.append(step)
    left = _least_hopeless(view, steps)
    return _proposal(view, left) if left else None


def needs_room(view: View) -> bool:
    """The best ran out of memory, or ended above its limit."""
    if view.best.status is Status.OOM:
        return True
    peak, limit = view.situation.peak_gib, view.situation.limit_gib
    return peak is not None and limit is not None and peak > limit


def _sets(view: View, fixes: Sequence[Fix]) -> Iterator[Step]:
    """Untried sets of fixes, cheapest first."""
    order = count()
    base = view.best.recipe
    queue: list[tuple[float, int, int, Recipe, tuple[Fix, ...]]] = [(0.0, next(order), 0, base, ())]
    seen = {base.digest()}
    looked_at = 0
    while queue and looked_at < SETS:
        cost, _, start, recipe, taken = heapq.heappop(queue)
        looked_at += 1
        if taken and recipe.digest() not in view.tried and not view.refused(recipe):
            yield Step(recipe=recipe, fixes=taken, cost=cost, forecast=view.gate.forecast(recipe))
        situation = replace(view.situation, recipe=recipe)
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


def _least_hopeless(view: View, steps: Sequence[Step]) -> Step | None:
    """The cheapest set the gate abstains on; else the one with the lowest forecast, a few times over."""
    unknown = [step for step in steps if step.forecast.fits is None]
    if unknown:
        return min(unknown, key=lambda step: step.cost)
    spent = sum(
        trial.proposal.phase is Phase.FIT and trial.status is Status.OOM and trial.proposal.parent is not None
        for trial in view.trials
    )
    if spent >= HOPELESS_TRIALS or not steps:
        return None
    return min(steps, key=lambda step: (step.forecast.peak_gib or 0.0, step.cost))


def _proposal(view: View, step: Step) -> Proposal:
    """Named for its dearest fix; the words name all of them."""
    titles = " with ".join(fix.title for fix in step.fixes)
    verdict = {True: "is the cheapest change predicted to fit", False: "is the smallest change left", None: "is next"}
    return Proposal(
        recipe=step.recipe,
        parent=view.best.number,
        phase=Phase.FIT,
        fix=max(step.fixes, key=lambda fix: fix.slowdown).name,
        because=(
            f"{failure_in_words(view.situation, view.best.number)}; {titles} {verdict[step.forecast.fits]}: "
            f"{step.forecast.because}"
        ),
        predicted=Prediction(peak_gib=step.forecast.peak_gib),
    )
