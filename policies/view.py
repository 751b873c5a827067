"""What one decision sees: the best trial, all trials, the gate they teach and the noise they show.

Rebuilt from the trials at each call, so that a resumed study decides as the first run would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policies.fix import Fix
from policies.gate import Estimate, MemoryGate
from policies.noise import cpu_throughput, noise_band, throughput
from policies.refusals import Refused, refusals
from policies.situation import Situation, situation_of
from policies.trial import Status, Trial, Verdict
from trainer.recipe import Recipe

# A fix's published record counts as this many trials of our own.
PRIOR_TRIALS = 2.0
# Above this noise a difference inside it is no evidence of "no gain": real gains of single fixes are of its size.
TELLS_NOTHING = 0.05
# Throughput rises with these up to a point and falls from there: fewer, larger kernels against memory traffic;
# more cores against contention.
SINGLE_BEST = ("micro_batch_size", "threads_per_rank")


@dataclass(frozen=True, kw_only=True)
class View:
    """`tried` maps a recipe's digest to the trial that ran it; `refusals` is what the trainer was seen to refuse."""

    best: Trial
    trials: tuple[Trial, ...]
    situation: Situation
    gate: MemoryGate
    noise: float
    tried: dict[str, int]
    refusals: tuple[Refused, ...] = ()

    def refused(self, recipe: Recipe) -> Refused | None:
        """What was learnt that speaks against paying for it."""
        return next((each for each in self.refusals if each.meets(recipe)), None)

    def chance(self, fix: Fix) -> float:
        """How often the fix pays: its published record, corrected by this study's own verdicts on it."""
        verdicts = [t.verdict for t in self.trials if t.proposal.fix == fix.name and t.verdict is not None]
        paid = sum(verdict is Verdict.ACCEPTED for verdict in verdicts)
        return (fix.chance * PRIOR_TRIALS + paid) / (PRIOR_TRIALS + len(verdicts))

    def failed_before(self, changes: dict[str, Any]) -> Trial | None:
        """A trial that made these changes, or a smaller step the same way, and did not pay.

        Running out of memory is left out: that is for the gate, which knows how much room there is now.
        """
        for trial in self.trials:
            if not self._lost(trial):
                continue
            made = {knob: to for knob, (_, to) in trial.changes.items()}
            if made and (made == changes or self._further_the_same_way(made, changes)):
                return trial
        return None

    def _lost(self, trial: Trial) -> bool:
        """It failed, did nothing, or was measured without a gain. On a machine so noisy that the measurement says
        nothing, or where wall and CPU time disagree, it counts as not known."""
        if trial.status in (Status.FAILED, Status.NOOP):
            return True
        parent = next((t for t in self.trials if t.number == trial.proposal.parent), None)
        if parent is None or trial.status is not Status.OK or trial.accepted:
            return False
        gains = [
            after / before - 1.0
            for rate in (throughput, cpu_throughput)
            if (before := rate(parent)) and (after := rate(trial))
        ]
        untold = self.noise > TELLS_NOTHING and all(abs(gain) <= self.noise for gain in gains)
        return not untold and all(gain <= self.noise for gain in gains)

    def _further_the_same_way(self, made: dict[str, Any], changes: dict[str, Any]) -> bool:
        """One of the knobs that have a single best value, moved past where it lost already."""
        (knob, *more) = made
        if more or set(changes) != {knob} or knob not in SINGLE_BEST:
            return False
        now = self.best.recipe.knob(knob)
        return bool(now < made[knob] <= changes[knob] or changes[knob] <= made[knob] < now)

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
        refusals=refusals(trials),
    )
