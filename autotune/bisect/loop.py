"""Runs a bisection: takes a subset of B's differences into A, runs a burst of it, until the verdict is final or a limit
is reached.

The journal has everything on which a decision depends: the subset of a trial is in its proposal's reason, and the same
bursts give the same next subset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autotune.bisect.measure import Measure, measure_of
from autotune.tuning.bench import Bench
from autotune.tuning.events import Ended
from autotune.tuning.history import History
from autotune.tuning.seen import bursts_seen
from policies.bisect.differences import Ends
from policies.bisect.effects import predicted_effects
from policies.bisect.guilt import Predicted, expected_deviation, guilt_of
from policies.bisect.question import BisectStep, Observation, Question, Subset
from policies.bisect.steps import next_step
from policies.noise import medians as log_costs
from policies.reason import Reason, ReasonKind
from policies.trial import Phase, Prediction, Proposal, Status, Trial, Verdict


@dataclass(frozen=True)
class Problem:
    """The two recipes of a bisection.

    `predicted`: effect of each difference by estimate; `question`: the prior before any burst.
    """

    ends: Ends

    @cached_property
    def predicted(self) -> tuple[Predicted, ...]:
        return predicted_effects(self.ends)

    @cached_property
    def question(self) -> Question:
        return Question(guilt=guilt_of(self.predicted), deviation=expected_deviation([]), legal=self.ends.legal)

    def names(self, subset: Subset) -> list[str]:
        return [self.ends.differences[at].name for at in sorted(subset)]

    def subset(self, trial: Trial) -> Subset:
        """Returns the differences that are set as in B in a trial."""
        if trial.proposal.reason is None or trial.proposal.reason.kind is not ReasonKind.SUBSET:
            return frozenset()
        numbers = {each.name: at for at, each in enumerate(self.ends.differences)}
        return frozenset(numbers[name] for name in trial.proposal.reason.figures["taken"])

    def seen(self, trials: Sequence[Trial], measure: Measure = Measure.WALL) -> list[Observation]:
        """Returns the result of every burst, in the order they ran."""
        return bursts_seen(trials, self.subset, trials[0], measure.cost) if trials else []

    def measure(self, trials: Sequence[Trial]) -> Measure:
        """Returns the measure by which the bursts so far are compared."""
        ran = _that_ran(trials)
        a, b = (next((trial for trial in ran if self.subset(trial) == end), None) for end in self.question.ends)
        return measure_of(a, b, ran)

    def step(self, trials: Sequence[Trial]) -> BisectStep:
        """Returns the verdict after these trials, and the subset to run next."""
        measure = self.measure(trials)
        observed = map(measure.observed_deviation, _that_ran(trials))
        question = replace(self.question, deviation=expected_deviation(observed))
        return next_step(question, self.seen(trials, measure))


def _that_ran(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if any(outcome.ok for outcome in trial.outcomes)]


@dataclass(frozen=True, kw_only=True)
class BisectLoop:
    """One bisection; `bench` runs its bursts and writes its journal."""

    problem: Problem
    bench: Bench

    def run(self) -> Ended:
        """Runs bursts until the verdict is final or a limit is reached; appends to the journal how it ended, and
        returns it."""
        self.bench.replay()
        for number in self._history.proposals:
            if number not in self._history.attempted:
                self.bench.attempt(number)
            self._conclude(number)
        while (step := self.problem.step(self._trials)).next_subset is not None:
            if (spent := self.bench.spent_out) is not None:
                return self.bench.journal.append(Ended(status="budget", reason=spent))
            self._run(step)
        ended = Ended(status="converged" if self._runs else "infeasible", reason=self._reason(step))
        return self.bench.journal.append(ended)

    @property
    def _history(self) -> History:
        return self.bench.journal.history

    @property
    def _trials(self) -> list[Trial]:
        return list(self._history.attempted.values())

    @property
    def _runs(self) -> bool:
        return self._history.attempted[0].status is Status.OK

    def _run(self, step: BisectStep) -> None:
        """Runs a burst of the subset that `step` asks for, as a repeat if a trial of it exists."""
        assert step.next_subset is not None
        known = next((trial for trial in self._trials if self.problem.subset(trial) == step.next_subset), None)
        if known is not None:
            self.bench.repeat(known)
            return
        number = self.bench.enter(self._proposal(step.next_subset))
        self.bench.attempt(number)
        self._conclude(number)

    def _proposal(self, subset: Subset) -> Proposal:
        """Returns the proposal of a subset; only A and B themselves are traced."""
        ends = self.problem.ends
        recipe = ends.recipe(subset)
        if subset not in self.problem.question.ends:
            untraced = recipe.burst.model_copy(update={"trace_steps": 0})
            recipe = recipe.model_copy(update={"burst": untraced})
        taken = {"taken": self.problem.names(subset), "of": len(ends.differences)}
        reason = Reason(kind=ReasonKind.SUBSET, figures=taken) if subset else Reason(kind=ReasonKind.BASE)
        return Proposal(
            recipe=recipe,
            parent=0 if subset else None,
            phase=Phase.PROFILE if subset else Phase.FIT,
            fix="bisect" if subset else "base",
            reason=reason,
            predicted=Prediction(),
        )

    def _conclude(self, number: int) -> None:
        """Writes the verdict on a trial's first burst, unless the journal has it."""
        trial = self._history.attempted[number]
        if trial.verdict is not None:
            return
        if number == 0 and trial.status is Status.OK:
            self.bench.conclude(trial, trial.status, Verdict.ACCEPTED, Reason(kind=ReasonKind.FIRST_TO_RUN))
            return
        seen, first = self.problem.seen([self._history.attempted[0], trial])[-1], self._history.attempted[0]
        base = log_costs(first)
        over = seen.log_cost - base[0] if seen.log_cost is not None and base else None
        figures = {"against": 0, "log_cost": over, "symptom": seen.symptom}
        reason = Reason(kind=ReasonKind.SUBSET_MEASURED, figures=figures)
        self.bench.conclude(trial, trial.status, Verdict.REJECTED, reason)

    def _reason(self, step: BisectStep) -> Reason:
        verdict = step.verdict
        figures = {
            "culprits": [self.problem.names(frozenset(each.members)) for each in verdict.culprits],
            "probability": verdict.probability,
            "confident": verdict.confident,
            "symptom": verdict.symptom,
        }
        return Reason(kind=ReasonKind.BISECTED, figures=figures)
