"""Fixes that were considered for the incumbent and not proposed, with the predicted figures and the reason against
each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.candidates.candidate import Candidate, group_of
from policies.candidates.knowledge import Knowledge
from policies.candidates.unmodelled import claim_of
from policies.changes.fix import Fix
from policies.changes.legality import Refusal, derive
from policies.constants import constant
from policies.fixes import FIXES
from policies.reason import Reason, ReasonKind
from policies.search.acquisition import LOSING_DEVIATIONS, score
from policies.trial import Z_90, Phase
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Idea:
    """A fix that was considered in a phase and not proposed.

    `gain` and its 90 % interval are fractions of throughput; None if no recipe of the fix was scored.
    """

    fix: str
    phase: Phase
    reason: Reason
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    fits_probability: float | None = None


def rejected_ideas(knowledge: Knowledge) -> tuple[Idea, ...]:
    """Returns one idea for every fix of the search, that is every fix that has a phase besides fit; none if the
    incumbent does not run."""
    if not knowledge.runs:
        return ()
    searched = {fix: [phase for phase in fix.phases if phase is not Phase.FIT] for fix in FIXES.values()}
    made = {fix: _recipes(fix, knowledge) for fix, phases in searched.items() if phases}
    weighed = _scored(
        {fix.name: recipes for fix, recipes in made.items() if not isinstance(recipes, Reason)}, knowledge
    )
    return tuple(
        Idea(fix=fix.name, phase=searched[fix][0], reason=found)
        if isinstance(found, Reason)
        else _idea(fix, searched[fix][0], weighed[fix.name], knowledge)
        for fix, found in made.items()
    )


def _recipes(fix: Fix, knowledge: Knowledge) -> list[Recipe] | Reason:
    """Returns the legal recipes that a fix makes from the incumbent, or the reason why there are none."""
    why_not = fix.precondition(knowledge.situation)
    if why_not is not None:
        return _reason(ReasonKind.NOT_APPLICABLE, because=why_not)
    derived = [derive(knowledge.recipe, changes) for changes in fix.changes(knowledge.situation)]
    legal = [each for each in derived if not isinstance(each, Refusal)]
    if legal:
        return legal
    refused = [each.reason for each in derived if isinstance(each, Refusal)]
    return _reason(ReasonKind.ILLEGAL, because="; ".join(dict.fromkeys(refused[:3])) or "it makes no change here")


def _scored(recipes: Mapping[str, Sequence[Recipe]], knowledge: Knowledge) -> dict[str, Candidate]:
    """Returns the best recipe of each fix, scored as for a decision; an untried one if there is one."""
    every = [recipe for made in recipes.values() for recipe in made]
    if not every:
        return {}
    table, now = tabulate(every), knowledge.surrogate.time.closed_form_of(knowledge.recipe)
    group = group_of(every, table, score(table, now, knowledge.surrogate, knowledge.avoid, min_fit=knowledge.min_fit))
    found, start = dict[str, Candidate](), 0
    for fix, made in recipes.items():
        rows = [group.candidate(start + row, recipe, runs=True) for row, recipe in enumerate(made)]
        found[fix] = max(
            rows,
            key=lambda each: (not knowledge.avoid.excludes(each.recipe), each.expected_improvement, -each.log_step),
        )
        start += len(made)
    return found


def _idea(fix: Fix, phase: Phase, found: Candidate, knowledge: Knowledge) -> Idea:
    gain, low, high = found.gains
    return Idea(
        fix=fix.name,
        phase=phase,
        reason=_known(found.recipe, knowledge) or _against(fix, found, knowledge),
        gain=gain,
        gain_low=low,
        gain_high=high,
        fits_probability=found.fits_probability,
    )


def _known(recipe: Recipe, knowledge: Knowledge) -> Reason | None:
    """Returns the reason against a recipe from this study's own trials; None if there is none."""
    moved = {knob: to for knob, (_, to) in knowledge.recipe.diff(recipe).items()}
    if (number := knowledge.avoid.tried.get(recipe.digest())) is not None:
        return _reason(ReasonKind.ALREADY_TRIED, trial=number)
    if refusal := knowledge.avoid.refusal(recipe):
        values = {knob: list(map(str, each)) for knob, each in refusal.values.items()}
        if refusal.missing:
            knobs = ", ".join(values)
            return _reason(ReasonKind.MISSING_SOFTWARE, trial=refusal.trial, knobs=knobs, software=refusal.missing)
        return _reason(ReasonKind.REFUSED_BEFORE, trial=refusal.trial, values=values, evidence=refusal.evidence)
    if lost := knowledge.avoid.lost_by(knowledge.recipe, moved):
        return _reason(ReasonKind.LOST_BEFORE, trial=lost.number)
    if undone := knowledge.avoid.undone_by(moved):
        return _reason(ReasonKind.UNDONE_BEFORE, trial=undone.number)
    return None


def _against(fix: Fix, found: Candidate, knowledge: Knowledge) -> Reason:
    """Returns the surrogate's reason against a candidate."""
    limit = constant("min_expected_improvement")
    if found.fits_probability < knowledge.min_fit:
        return _reason(ReasonKind.MAY_NOT_FIT, asked=knowledge.min_fit)
    if abs(found.log_step) < constant("unmodelled_log_step"):
        return _reason(ReasonKind.NO_EVIDENCE if claim_of(fix, knowledge) is None else ReasonKind.OUTRANKED)
    if found.log_step > LOSING_DEVIATIONS * found.deviation:
        return _reason(ReasonKind.PREDICTED_LOSS)
    if found.is_lost_in_noise:
        return _reason(ReasonKind.LOST_IN_NOISE, noise=math.expm1(Z_90 * found.noise))
    if found.expected_improvement < limit:
        improvement = math.expm1(found.expected_improvement)
        return _reason(ReasonKind.TOO_LITTLE, expected_improvement=improvement, limit=limit)
    return _reason(ReasonKind.OUTRANKED, expected_improvement=math.expm1(found.expected_improvement))


def _reason(kind: ReasonKind, **figures: Any) -> Reason:
    return Reason(kind=kind, figures=figures)
