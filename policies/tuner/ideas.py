"""Fixes that were considered beside the incumbent and not proposed, with the decider's own figures and its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from policies.candidates.candidate import group_of
from policies.candidates.knowledge import Knowledge
from policies.candidates.unmodelled import claim_of
from policies.changes.fix import Fix
from policies.changes.legality import Refusal, derive
from policies.constants import constant
from policies.fixes import FIXES
from policies.reason import Reason, ReasonKind
from policies.search.acquisition import LOSING_DEVIATIONS, is_lost_in_noise, score
from policies.trial import Z_90, Phase
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Idea:
    """A fix that was considered in a phase and not proposed. `gain` and its 90 % interval are fractions of throughput;
    None where the surrogate was not asked."""

    fix: str
    phase: Phase
    reason: Reason
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    fits_probability: float | None = None


def rejected_ideas(know: Knowledge) -> tuple[Idea, ...]:
    """Returns one idea for every fix that is not for fitting alone."""
    if not know.runs:
        return ()
    searched = {fix: [phase for phase in fix.phases if phase is not Phase.FIT] for fix in FIXES.values()}
    return tuple(_idea(fix, phases[0], know) for fix, phases in searched.items() if phases)


def _idea(fix: Fix, phase: Phase, know: Knowledge) -> Idea:
    why_not = fix.precondition(know.situation)
    if why_not is not None:
        return Idea(fix=fix.name, phase=phase, reason=_reason(ReasonKind.NOT_APPLICABLE, because=why_not))
    derived = [derive(know.recipe, changes) for changes in fix.changes(know.situation)]
    legal = [each for each in derived if not isinstance(each, Refusal)]
    if not legal:
        refused = [each.reason for each in derived if isinstance(each, Refusal)]
        because = "; ".join(dict.fromkeys(refused[:3])) or "it makes no change here"
        return Idea(fix=fix.name, phase=phase, reason=_reason(ReasonKind.ILLEGAL, because=because))
    return _predicted(fix, phase, legal, know)


def _predicted(fix: Fix, phase: Phase, legal: list[Recipe], know: Knowledge) -> Idea:
    """Weighs the best of a fix's recipes as the decider does."""
    table, time = tabulate(legal), know.surrogate.time
    scores = score(table, time.closed_form(tabulate([know.recipe])), know.surrogate, know.avoid, min_fit=know.min_fit)
    fresh = [row for row, recipe in enumerate(legal) if not know.avoid.is_out(recipe)]
    rows = fresh or list(range(len(legal)))
    row = max(rows, key=lambda at: (scores.score[at], -scores.log_step[at]))
    found = group_of(legal, table, scores).candidate(row, legal[row], runs=True)
    gain, low, high = found.gains
    return Idea(
        fix=fix.name,
        phase=phase,
        reason=_known(legal[row], know)
        or _weighed(fix, found.log_step, found.deviation, found.fits, found.score, know),
        gain=gain,
        gain_low=low,
        gain_high=high,
        fits_probability=found.fits,
    )


def _known(recipe: Recipe, know: Knowledge) -> Reason | None:
    """Returns what this study has learned of the change itself."""
    moved = {knob: to for knob, (_, to) in know.recipe.diff(recipe).items()}
    if (number := know.avoid.tried.get(recipe.digest())) is not None:
        return _reason(ReasonKind.ALREADY_TRIED, trial=number)
    if refusal := know.avoid.refusal(recipe):
        values = {knob: list(map(str, each)) for knob, each in refusal.values.items()}
        return _reason(ReasonKind.REFUSED_BEFORE, trial=refusal.trial, values=values, evidence=refusal.evidence)
    if lost := know.avoid.lost_by(know.recipe, moved):
        return _reason(ReasonKind.LOST_BEFORE, trial=lost.number)
    if undone := know.avoid.undone_by(moved):
        return _reason(ReasonKind.UNDONE_BEFORE, trial=undone.number)
    return None


def _weighed(fix: Fix, log_step: float, deviation: float, fits: float, improvement: float, know: Knowledge) -> Reason:
    """Returns what the surrogate has against a recipe."""
    noise, limit = know.surrogate.time.noise, constant("min_expected_improvement")
    if fits < know.min_fit:
        return _reason(ReasonKind.MAY_NOT_FIT, asked=know.min_fit)
    if abs(log_step) < constant("unmodelled_log_step"):
        return _reason(ReasonKind.NO_EVIDENCE if claim_of(fix, know) is None else ReasonKind.OUTRANKED)
    if log_step > LOSING_DEVIATIONS * deviation:
        return _reason(ReasonKind.PREDICTED_LOSS)
    if is_lost_in_noise(noise, expected=-log_step, most=-log_step + Z_90 * deviation):
        return _reason(ReasonKind.LOST_IN_NOISE, noise=math.expm1(Z_90 * noise))
    if improvement < limit:
        return _reason(ReasonKind.TOO_LITTLE, expected_improvement=math.expm1(improvement), limit=limit)
    return _reason(ReasonKind.OUTRANKED, expected_improvement=math.expm1(improvement))


def _reason(kind: ReasonKind, **figures: Any) -> Reason:
    return Reason(kind=kind, figures=figures)
