"""Weighing one fix: the recipe it would make and what it may give back, or why it is not worth a burst."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analyzers.diagnosis import Wall
from policies.fix import Fix, gain_of
from policies.gate import Forecast
from policies.legality import Refusal, derive
from policies.trial import Phase, Prediction
from policies.view import View
from trainer.recipe import Recipe

REASONS = 3  # of the refused alternatives of one fix, in an idea's words


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A fix that may be proposed. `wall` is None for a rule of thumb that no trace was asked about.

    `gain` is what the fix should give on average, `bound` what its wall could give at most: gain <= bound.
    """

    fix: Fix
    recipe: Recipe
    forecast: Forecast
    wall: Wall | None
    claimed_us: float
    gain: float
    bound: float

    @property
    def prediction(self) -> Prediction:
        known = self.wall is not None
        return Prediction(
            gain=self.gain if known else None,
            gain_bound=self.bound if known else None,
            peak_gib=self.forecast.peak_gib,
        )


@dataclass(frozen=True, kw_only=True)
class Idea:
    """A fix that was considered and not proposed, for the report."""

    fix: str
    phase: Phase
    why_not: str


def consider(fix: Fix, view: View, phase: Phase) -> Candidate | Idea:
    """The fix's first change that may be proposed and promises more than the noise."""
    why_not = fix.precondition(view.situation)
    if why_not is None:
        worth = _worth(fix, view)
        why_not = worth if isinstance(worth, str) else None
        if not isinstance(worth, str):
            found = _first_allowed(fix, view)
            if isinstance(found, tuple):
                recipe, forecast = found
                wall, claimed_us, gain, bound = worth
                return Candidate(
                    fix=fix, recipe=recipe, forecast=forecast, wall=wall,
                    claimed_us=claimed_us, gain=gain, bound=bound,
                )  # fmt: skip
            why_not = found
    return Idea(fix=fix.name, phase=phase, why_not=why_not or "it does not apply")


def _worth(fix: Fix, view: View) -> tuple[Wall | None, float, float, float] | str:
    """(wall, claimed us, expected gain, bound), or why it is not worth a burst."""
    situation = view.situation
    if not fix.claims or situation.analysis is None:
        return (None, 0.0, 0.0, 0.0)
    claimed = fix.claimed_us(situation)
    if claimed is None:
        walls = " or ".join(wall.value for wall in fix.walls)
        return f"the trace shows no {walls} time that it could recover"
    wall, us = claimed
    at_most = gain_of(us, situation.step_us)
    if at_most <= view.noise:
        return f"at most {100 * at_most:.1f} %, within the noise of {100 * view.noise:.1f} %"
    expected = gain_of(us * view.chance(fix), situation.step_us)
    # a fix may help on every wall it claims, and walls are disjoint parts of the step: the bound is all of them
    bound_us = sum(fix.bound_us(situation, wall) for wall in fix.walls)
    return wall, us, expected, gain_of(bound_us, situation.step_us)


def _first_allowed(fix: Fix, view: View) -> tuple[Recipe, Forecast] | str:
    reasons: list[str] = []
    for changes in fix.changes(view.situation):
        verdict = _allowed(changes, view)
        if isinstance(verdict, tuple):
            return verdict
        reasons.append(verdict)
    return "; ".join(list(dict.fromkeys(reasons))[:REASONS]) or "no change of it is legal here"


def _allowed(changes: dict[str, Any], view: View) -> tuple[Recipe, Forecast] | str:
    recipe = derive(view.best.recipe, changes)
    if isinstance(recipe, Refusal):
        return recipe.reason
    number = view.tried.get(recipe.digest())
    if number is not None:
        return f"already tried as trial {number}"
    if refused := view.refused(recipe):
        return str(refused)
    moved = {knob: to for knob, (_, to) in view.best.recipe.diff(recipe).items()}
    failed, undone = view.failed_before(moved), view.undone_by(moved)
    if failed:
        return f"trial {failed.number} made this change without a gain"
    if undone:
        return f"trial {undone.number} gained by the opposite change"
    forecast = view.gate.forecast(recipe)
    return f"it would not fit: {forecast.because}" if forecast.fits is False else (recipe, forecast)
