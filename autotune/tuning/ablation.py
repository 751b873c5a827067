"""Runs the ablation of a tuned recipe: bursts without some of its changes, until the smallest change with the same gain
is known or the bursts are spent.

Every step is in the journal, and the next one depends on the bursts alone, so that a resumed study continues it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.tuning.bench import Bench
from autotune.tuning.events import AblationStarted, BurstStarted, Proposed
from autotune.tuning.history import History
from autotune.tuning.seen import bursts_seen
from policies.ablation.ablation import Ablation
from policies.ablation.removal import EMPTY, AblationStep, Removal, figures_of
from policies.bisect.question import Observation, Subset, log_costs
from policies.noise import medians
from policies.reason import Reason, ReasonKind
from policies.trial import ChangeShare, Phase, Trial, Verdict


@dataclass(frozen=True, kw_only=True)
class AblationRun:
    """The ablation of trial `tuned`, with at most `max_bursts` bursts, or as many as an earlier run of the tuner
    granted if those are more."""

    ablation: Ablation
    bench: Bench
    tuned: int
    max_bursts: int

    def run(self) -> tuple[ChangeShare, ...]:
        """Runs the bursts, accepts the smaller recipe if it loses nothing, and returns every change with its shares."""
        granted = AblationStarted(tuned=self.tuned, bursts=self.max_bursts)
        started = self.bench.journal.replay_or_append(AblationStarted, lambda: granted, tuned=self.tuned)
        last = self.bench.spent + max(started.bursts, self.max_bursts)
        step = self.ablation.step(self._seen)
        while step.next_removal is not None and self._may_continue(last):
            self._burst(step, step.next_removal)
            step = self.ablation.step(self._seen)
        if step.confirmed is None:
            return self.shares()
        self._accept(step.confirmed)
        return self.shares(step.confirmed.taken)

    def shares(self, gone: Subset = EMPTY) -> tuple[ChangeShare, ...]:
        """Returns every change with its shares by the bursts so far; `gone`: changes that the accepted recipe lacks."""
        return self.ablation.shares(self._seen, gone)

    @property
    def _history(self) -> History:
        return self.bench.journal.history

    @property
    def _seen(self) -> list[Observation]:
        trials = list(self._history.attempted.values())
        return bursts_seen(trials, self._subset, trials[self.tuned])

    def _subset(self, trial: Trial) -> Subset | None:
        """Returns the changes that a trial lacks; None if it has others, or ran at another size."""
        tuned = self._history.attempted[self.tuned]
        return self.ablation.subset(trial.recipe) if trial.fidelity == tuned.fidelity else None

    def _may_continue(self, last: int) -> bool:
        """Returns whether the next step is a recorded burst of the ablation, or one within the limits and up to number
        `last`."""
        past = self.bench.journal.next_recorded
        if past is None:
            return self.bench.spent < last and self.bench.spent_out is None
        return isinstance(past, BurstStarted) or (isinstance(past, Proposed) and past.phase is Phase.ABLATION)

    def _burst(self, step: AblationStep, ask: Removal) -> None:
        known = self._trial_of(ask)
        if known is None:
            number = self.bench.enter(self.ablation.proposal(ask))
            self._conclude(self.bench.attempt(number))
        else:
            self.bench.repeat(self._history.attempted[self.tuned] if step.repeat_tuned else known)

    def _trial_of(self, removal: Removal) -> Trial | None:
        trials = self._history.attempted.values()
        return next((trial for trial in trials if self._subset(trial) == removal.taken), None)

    def _conclude(self, trial: Trial) -> None:
        """Writes the verdict on a trial's first burst: its log cost over the tuned recipe, or its symptom."""
        seen = bursts_seen([trial], lambda _: EMPTY, self._history.attempted[self.tuned])
        log_cost = seen[0].log_cost - self._log_cost if seen and seen[0].log_cost is not None else None
        figures = {"against": self.tuned, "log_cost": log_cost, "symptom": seen[0].symptom if seen else "refused"}
        reason = Reason(kind=ReasonKind.SUBSET_MEASURED, figures=figures)
        self.bench.conclude(trial, trial.status, Verdict.REJECTED, reason)

    @property
    def _log_cost(self) -> float:
        """Returns the mean log step time per token of the tuned recipe's bursts."""
        costs = medians(self._history.attempted[self.tuned])
        return sum(costs) / len(costs)

    def _accept(self, found: Removal) -> None:
        trial, seen = self._trial_of(found), self._seen
        assert trial is not None
        log_cost, low, high = figures_of(found.effect)
        figures = {
            "taken": self.ablation.names(found.taken),
            "against": self.tuned,
            "gain": math.expm1(-log_cost),
            "gain_low": math.expm1(-high),
            "gain_high": math.expm1(-low),
            "bursts": len(log_costs(seen, found.taken)),
            "against_bursts": len(log_costs(seen, EMPTY)),
        }
        reason = Reason(kind=ReasonKind.COSTS_NOTHING, figures=figures)
        self.bench.conclude(trial, trial.status, Verdict.ACCEPTED, reason)
