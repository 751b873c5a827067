"""Runs the bursts at full size of a study that searches with proxies (fewer nodes and layers), and decides which of
them are still missing and whether the limits leave room for them.

The loop (`autotune.tuning.loop`) asks here before each proposal and after each search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.tuning.bench import Bench
from autotune.tuning.events import Proposed
from autotune.tuning.history import History
from autotune.tuning.judge import MIN_FIT_PROBABILITY, MIN_GAIN_PROBABILITY, gain_probability
from policies.reason import Reason, ReasonKind
from policies.trial import Phase, Prediction, Proposal, Trial
from trainer.recipe import Recipe

MAX_CHOICES = 3  # recipes measured at full size one after the other, each likely to beat the one before


class Sizing(Protocol):
    """The policy that chooses the size of every burst, and predicts recipes at full size from proxies.

    All methods are pure.
    """

    def sized(self, proposal: Proposal, trials: Sequence[Trial]) -> Proposal:
        """Returns the proposal with the fidelity of its bursts."""
        ...

    def at_full_size(self, trial: Trial, best: Trial | None, trials: Sequence[Trial]) -> Prediction:
        """Returns the predicted gain of a trial's recipe over the best's at full size, and P(fits), after all these
        trials."""
        ...

    def choice(self, trials: Sequence[Trial]) -> Trial | None:
        """Returns the trial, of those that ran, whose recipe is predicted to be the fastest at full size; None
        if none ran."""
        ...


@dataclass(frozen=True, kw_only=True)
class FullSize:
    """The bursts at full size of one tuning run.

    `sizing`: None if the study uses no proxies; `settle` judges an attempted trial and writes its verdict.
    """

    base: Recipe
    bench: Bench
    sizing: Sizing | None
    settle: Callable[[Trial], Trial]

    @property
    def _history(self) -> History:
        return self.bench.journal.history

    def measure(self) -> None:
        """Measures at full size the recipe predicted to be the fastest, the reference, and then, up to MAX_CHOICES
        recipes in all, each that is likely to be faster. Does nothing without proxies."""
        while (past := self.bench.journal.next_recorded) is not None:
            if not isinstance(past, Proposed) or not is_at_full_size(past):
                return
            self.bench.journal.replay_next()
            self.settle(self.bench.attempt(past.trial))
        if self.sizing is None:
            return
        self._measure_choice()
        if (reference := self._reference_to_run()) is not None:
            self._run(reference, best=False)
        for _ in range(MAX_CHOICES - 1):
            if not self._measure_choice():
                break

    def _measure_choice(self) -> bool:
        """Measures the recipe predicted to be the fastest at full size; returns False if it was measured, is not likely
        to beat the best at full size, or cannot be measured."""
        assert self.sizing is not None
        choice, best = self.sizing.choice(self._history.trials), self._history.best_at_full_size
        if choice is None:
            return False
        if best is not None:
            predicted = self.sizing.at_full_size(choice, best, self._history.trials)
            if gain_probability(predicted) < MIN_GAIN_PROBABILITY:
                return False
        return self._run(choice, best=True)

    @property
    def best_comes_first(self) -> bool:
        """Returns whether the best recipe should run at full size before any other: it informs most of the other
        predictions."""
        best = self._history.best
        if self.sizing is None or best is None or self._history.at_full_size(best.recipe) is not None:
            return False
        return self.bench.affords(best.recipe)

    @property
    def leaves_room(self) -> bool:
        """Returns whether after another burst the limits still allow the missing bursts at full size; True if they do
        not allow them now either."""
        if self.sizing is None or self._history.best is None:
            return True
        pair = (self._history.best, self._history.reference)
        missing = {t.number for t in pair if t is not None and self._history.at_full_size(t.recipe) is None}
        if not missing or not self.bench.affords(self.base, bursts=len(missing)):
            return True
        left = self.bench.budget - self.bench.spent
        return left > len(missing) and self.bench.affords(
            self.base, bursts=len(missing), more_gpu_hours=self.bench.burst_gpu_hours
        )

    def _run(self, trial: Trial, *, best: bool) -> bool:
        """Measures a trial's recipe at full size; returns False if that was done or cannot be done."""
        known = self._history.at_full_size(trial.recipe) is not None
        if known or not self.bench.may_burst or not self.bench.affords(trial.recipe):
            return False
        assert self.sizing is not None
        proposal = Proposal(
            recipe=trial.recipe,
            parent=trial.number,
            phase=Phase.FIT,
            fix=trial.proposal.fix,
            reason=Reason(kind=ReasonKind.FULL_SIZE, figures={"trial": trial.number, "best": best}),
            predicted=self.sizing.at_full_size(trial, self._history.best_at_full_size, self._history.trials),
        )
        self.settle(self.bench.attempt(self.bench.enter(proposal)))
        return True

    def _reference_to_run(self) -> Trial | None:
        """Returns the base recipe if it should fit, else the reference of the proxies; None if neither should."""
        assert self.sizing is not None
        if self._history.best is None:
            return None
        for trial in (self._history.attempted[0], self._history.reference):
            if trial is not None and trial.fidelity is not None:
                found = self.sizing.at_full_size(trial, None, self._history.trials)
                if (found.fits_probability or 0.0) >= MIN_FIT_PROBABILITY:
                    return trial
        return None


def is_at_full_size(proposed: Proposed) -> bool:
    """Returns whether a proposal repeats, at full size, a recipe of which a proxy ran."""
    return proposed.reason is not None and proposed.reason.kind is ReasonKind.FULL_SIZE
