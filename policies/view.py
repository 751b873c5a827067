"""What one decision sees: the best trial, all trials, the gate they teach and the noise they show.

Rebuilt from the trials at each call, so that a resumed study decides as the first run would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policies.fix import Fix
from policies.gate import Estimate, MemoryGate
from policies.noise import noise_band
from policies.situation import Situation, situation_of
from policies.trial import Status, Trial, Verdict

# A fix's published record counts as this many trials of our own.
PRIOR_TRIALS = 2.0


@dataclass(frozen=True, kw_only=True)
class View:
    """`tried` maps a recipe's digest to the trial that ran it."""

    best: Trial
    trials: tuple[Trial, ...]
    situation: Situation
    gate: MemoryGate
    noise: float
    tried: dict[str, int]

    def chance(self, fix: Fix) -> float:
        """How often the fix pays: its published record, corrected by this study's own verdicts on it."""
        verdicts = [t.verdict for t in self.trials if t.proposal.fix == fix.name and t.verdict is not None]
        paid = sum(verdict is Verdict.ACCEPTED for verdict in verdicts)
        return (fix.chance * PRIOR_TRIALS + paid) / (PRIOR_TRIALS + len(verdicts))

    def failed_before(self, changes: dict[str, Any]) -> Trial | None:
        """A trial that made exactly these changes from another parent and did not pay.

        Running out of memory is left out: that is for the gate, which knows how much room there is now.
        """
        useless = (Status.FAILED, Status.NOOP)
        for trial in self.trials:
            same = trial.changes and {knob: to for knob, (_, to) in trial.changes.items()} == changes
            if same and (trial.status in useless or _rejected_as_slower(trial)):
                return trial
        return None

    def undone_by(self, changes: dict[str, Any]) -> Trial | None:
        """An accepted trial that gained by exactly the opposite of these changes."""
        for trial in self.trials:
            if trial.accepted and trial.changes and {k: was for k, (was, _) in trial.changes.items()} == changes:
                return trial
        return None


def view_of(best: Trial, trials: Sequence[Trial], estimate: Estimate) -> View:
    return View(
        best=best,
        trials=tuple(trials),
        situation=situation_of(best),
        gate=MemoryGate(trials, estimate=estimate),
        noise=noise_band(trials),
        tried={trial.recipe.digest(): trial.number for trial in trials},
    )


def _rejected_as_slower(trial: Trial) -> bool:
    return trial.status is Status.OK and trial.verdict in (Verdict.REJECTED, Verdict.INCONCLUSIVE)
