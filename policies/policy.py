"""The policy: given the best trial so far, the phase and all trials, the next recipe to try, and why.

A pure function of its arguments: all state is rebuilt from the trials, so that a resumed study goes on
identically. It never proposes an illegal recipe, a recipe already tried, or a change of a frozen knob.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.consider import Candidate, Idea, consider
from policies.fit import needs_room, propose_fit
from policies.fix import Fix
from policies.fixes import FIXES
from policies.gate import Estimate, closed_form_gib
from policies.noise import throughput
from policies.phases import PLANS, Order, Plan, plan_of
from policies.retune import exhausted, largest_bound, propose_retune
from policies.trial import Phase, Proposal, Trial
from policies.view import View, view_of
from policies.words import because_of_wall, leading_wall
from trainer.recipe import Recipe


class Policy:
    """`seed` decides the sampler's choices; the fixes' order does not depend on it. `estimate` is the closed form
    that the memory gate corrects."""

    def __init__(self, base: Recipe, seed: int, *, estimate: Estimate = closed_form_gib) -> None:
        self._base = base
        self._seed = seed
        self.estimate = estimate

    def propose(self, best: Trial, phase: Phase, trials: Sequence[Trial]) -> Proposal | None:
        """The next recipe of this phase; None when the phase has nothing left to propose."""
        plan = plan_of(phase)
        picks: dict[Order, Callable[[View], Proposal | None]] = {
            Order.CHEAPEST_THAT_FITS: lambda view: propose_fit(view, plan),
            Order.AS_LISTED: lambda view: _first(view, plan),
            Order.BY_EXPECTED_GAIN: lambda view: _largest_gain(view, plan),
            Order.SEARCHED: lambda view: propose_retune(view, self._seed),
        }
        return picks[plan.order](view_of(best, trials, self.estimate))

    def reference(self, given: Trial, trials: Sequence[Trial]) -> Proposal | None:
        """None: the first recipe that fits is the cheapest change that may."""
        return None

    def why_stopped(self, best: Trial, trials: Sequence[Trial]) -> str:
        """Why there is nothing left to propose, in words for the report."""
        view = view_of(best, trials, self.estimate)
        if throughput(best) is None:
            return self._why_nothing_runs(view)
        bound = largest_bound(view)
        wall = leading_wall(view.situation)
        left = f"; remaining: {wall}, worth at most {100 * bound:.1f} %" if wall and bound is not None else ""
        search = exhausted(view) or "no new legal setting around the best is left that is predicted to fit"
        profile = plan_of(Phase.PROFILE).ends
        return f"{profile} ({100 * view.noise:.1f} %), and {search}{left}"

    def rejected_ideas(self, best: Trial, trials: Sequence[Trial]) -> tuple[Idea, ...]:
        """Every fix that was considered for the best recipe and is not proposed, with the reason."""
        view = view_of(best, trials, self.estimate)
        ideas: dict[str, Idea] = {}
        for plan in PLANS:
            for fix in _fixes_of(plan):
                found = consider(fix, view, plan.phase)
                if isinstance(found, Idea) and plan.phase is not Phase.FIT:
                    ideas.setdefault(fix.name, found)
        return tuple(ideas.values())

    def _why_nothing_runs(self, view: View) -> str:
        if not needs_room(view):
            failure = view.situation.failure
            kind = failure.kind.value if failure else "unknown"
            return f"{self._base.name} failed ({kind}), and no fix addresses that"
        tried = sum(trial.proposal.phase is Phase.FIT for trial in view.trials)
        return f"no legal recipe was found that fits: {tried} tried, and nothing left is predicted to fit"


def _fixes_of(plan: Plan) -> list[Fix]:
    named = plan.fixes + plan.last_resorts
    return [FIXES[name] for name in named] if named else [f for f in FIXES.values() if plan.phase in f.phases]


def _candidates(view: View, plan: Plan) -> list[Candidate]:
    if throughput(view.best) is None:
        return []
    considered = [consider(fix, view, plan.phase) for fix in _fixes_of(plan)]
    return [found for found in considered if isinstance(found, Candidate)]


def _first(view: View, plan: Plan) -> Proposal | None:
    return next((_proposal(candidate, view, plan) for candidate in _candidates(view, plan)), None)


def _largest_gain(view: View, plan: Plan) -> Proposal | None:
    """Only what a trace speaks for: without evidence nothing is proposed."""
    if view.situation.analysis is None:
        return None
    found = [candidate for candidate in _candidates(view, plan) if candidate.wall]
    best = max(found, key=lambda candidate: candidate.gain, default=None)
    return _proposal(best, view, plan) if best else None


def _proposal(candidate: Candidate, view: View, plan: Plan) -> Proposal:
    return Proposal(
        recipe=candidate.recipe,
        parent=view.best.number,
        phase=plan.phase,
        fix=candidate.fix.name,
        because=because_of_wall(candidate, view),
        predicted=candidate.prediction,
    )
