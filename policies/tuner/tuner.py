"""The decider: phase → candidates → acquisition → proposal. `decision` has the steps of one decision.

Everything is a pure function of the base recipe, the seed, the lessons and the trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from policies.blas import one_blas_thread
from policies.candidates.fitting import cheapest_fit
from policies.candidates.knowledge import Knowledge
from policies.candidates.layouts import legal_space
from policies.reason import Reason, ReasonKind
from policies.search.avoid import Avoid
from policies.search.space import Space, space_of
from policies.situation import situation_of
from policies.surrogate.lesson import Lesson
from policies.surrogate.prior import prior_of
from policies.surrogate.surrogate import Surrogate, fit_surrogate
from policies.trial import Phase, Proposal, Trial
from policies.tuner.decision import Decision
from policies.tuner.explain import Explain
from policies.tuner.ideas import Idea, rejected_ideas
from trainer.estimate.plan.search import Search
from trainer.recipe import Recipe


class Tuner:
    """Proposes recipes for a study. `seed` seeds Optuna's samplers; `lessons` are of other studies."""

    def __init__(self, base: Recipe, seed: int, lessons: Sequence[Lesson] = ()) -> None:
        self._base, self._seed, self._lessons = base, seed, tuple(lessons)
        self._prior = prior_of(lessons)
        self._decision: Decision | None = None
        self._fitted: tuple[tuple[Trial, ...], Surrogate] | None = None

    @one_blas_thread()
    def propose(self, incumbent: Trial, phase: Phase, trials: Sequence[Trial]) -> Proposal | None:
        """Returns the next recipe of a phase; None if it has none that is worth a burst."""
        decision = self._decide(incumbent, trials)
        if not decision.know.runs or decision.know.needs_room:
            return decision.first() if phase is Phase.FIT and decision.know.needs_room else None
        return None if phase is Phase.FIT else decision.next(phase, self._seed)

    @one_blas_thread()
    def reference(self, given: Trial, trials: Sequence[Trial]) -> Proposal | None:
        """Returns the cheapest change of the recipe as given that is predicted to fit: the baseline of the speed-up."""
        decision = self._decide(given, trials)
        found = cheapest_fit(decision.know)
        return decision.fitting(found, ReasonKind.REFERENCE) if found is not None else None

    @one_blas_thread()
    def why_stopped(self, incumbent: Trial, trials: Sequence[Trial]) -> Reason:
        """Returns why there is nothing left to propose."""
        return self._decide(incumbent, trials).why_stopped()

    @one_blas_thread()
    def rejected_ideas(self, incumbent: Trial, trials: Sequence[Trial]) -> tuple[Idea, ...]:
        """Returns every fix that was considered for the incumbent and not proposed, with its figures."""
        return rejected_ideas(self._know(incumbent, trials))

    def surrogate(self, trials: Sequence[Trial]) -> Surrogate:
        """Returns the surrogate of the cluster after these trials, fitted once."""
        if self._fitted is None or not _are_same(self._fitted[0], trials):
            self._fitted = tuple(trials), self._fit(trials)
        return self._fitted[1]

    def _fit(self, trials: Sequence[Trial]) -> Surrogate:
        limits = [o.limit_gib for trial in trials for o in trial.outcomes if o.limit_gib is not None]
        limit_gib = min(limits, default=self._base.memory_limit_gib)
        return fit_surrogate(trials, limit_gib=limit_gib, prior=self._prior)

    @cached_property
    def _legal(self) -> Search:
        return legal_space(self._base)

    @cached_property
    def _space(self) -> Space:
        return space_of(self._base, self._legal.finals.candidates)

    def _know(self, incumbent: Trial, trials: Sequence[Trial]) -> Knowledge:
        return Knowledge(
            given=self._base,
            incumbent=incumbent,
            trials=tuple(trials),
            situation=situation_of(incumbent),
            surrogate=self.surrogate(trials),
            avoid=Avoid(trials),
        )

    def _decide(self, incumbent: Trial, trials: Sequence[Trial]) -> Decision:
        """Returns the decision at this point, computed once for all phases."""
        key = (incumbent.number, *((t.number, len(t.outcomes), t.verdict) for t in trials))
        if self._decision is None or self._decision.key != key:
            know = self._know(incumbent, trials)
            same = self._decision is not None and self._decision.know.recipe == know.recipe
            single_moves = self._decision.single_moves if self._decision and same else None
            explain = Explain(know, self._lessons)
            self._decision = Decision(
                key=key, know=know, legal=self._legal, space=self._space, explain=explain, single_moves=single_moves
            )
        return self._decision


def _are_same(trials: Sequence[Trial], others: Sequence[Trial]) -> bool:
    return len(trials) == len(others) and all(one is other for one, other in zip(trials, others, strict=True))
