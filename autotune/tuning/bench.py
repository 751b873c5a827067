"""Runs what the loop decides: a recipe becomes bursts, their traces an analysis, and all of it a trial.

Every step goes through the journal, so that a resumed study gets back what was measured and pays only for
what was not. What the machine does wrong is kept apart from what the recipe does wrong.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from pathlib import Path

import msgspec

from analyzers.diagnosis import Analysis
from analyzers.errors import TraceError
from autotune.tuning.events import Analyzed, BurstFinished, BurstLost, BurstStarted, Judged, Proposed, Purpose, Refused
from autotune.tuning.journal import Journal
from policies.reason import Reason, ReasonKind
from policies.trial import Proposal, Status, Trial, Verdict
from trainer.burst import Burst, Failure, FailureKind, Outcome, read_outcome, was_begun
from trainer.engines import Adopting, Engine
from trainer.errors import ToolError
from trainer.recipe import Recipe
from trainer.recipe.rules import Finding

WATCHED = 2  # late ranks that the next burst traces again
LACKED = 4  # ranks whose traces the last analysis lacked: likewise
TRIES = 2  # of a burst that the machine, not the recipe, made fail
LOST_IN_A_ROW = 3  # bursts lost to the machine: then it is not one node, and nothing more is learnt here
UNTOLD = (FailureKind.INFRASTRUCTURE, FailureKind.INTERRUPTED)  # these tell nothing of a recipe
FREE_BYTES = 1 << 20  # less than this left on the disk: the disk is what failed


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What bursts need, and how much they may cost: `budget` bursts, `max_gpu_hours`, and none that would end after
    `until` (seconds, by the clock). `bursts` is the study's folder of run folders."""

    journal: Journal
    engine: Engine
    bursts: Path
    budget: int
    seed: int
    check: Callable[[Recipe], list[Finding]]
    analyze: Callable[[Sequence[Path]], Analysis]
    clock: Callable[[], float]
    max_gpu_hours: float | None = None
    until: float | None = None

    @property
    def spent(self) -> int:
        return len(self.journal.history.finished)

    @property
    def may_burst(self) -> bool:
        """Whether the next step is a burst: an earlier run took it, or the budget allows it."""
        return self.journal.comes(BurstStarted, otherwise=self.spent_out is None)

    @property
    def spent_out(self) -> Reason | None:
        """Why no further burst is paid for, one as long as the last taken for granted; None while one may be."""
        history, hours = self.journal.history, self.burst_gpu_hours
        last = history.finished[-1] if history.finished else None
        if self.spent >= self.budget:
            return Reason(kind=ReasonKind.BUDGET_SPENT, figures={"bursts": self.spent, "budget": self.budget})
        if self.max_gpu_hours is not None and history.gpu_hours + hours > self.max_gpu_hours:
            used = {"gpu_hours": history.gpu_hours, "max_gpu_hours": self.max_gpu_hours, "burst_gpu_hours": hours}
            return Reason(kind=ReasonKind.GPU_HOURS_SPENT, figures=used | {"unit": history.unit})
        if self.until is not None and self.clock() + (last.seconds if last else 0.0) > self.until:
            return Reason(kind=ReasonKind.DEADLINE_REACHED)
        return None

    @property
    def burst_gpu_hours(self) -> float:
        """What the next burst takes, were it as the last one; 0 before the first."""
        finished = self.journal.history.finished
        return finished[-1].gpu_s / 3600 if finished else 0.0

    def enter(self, proposal: Proposal) -> int:
        """Writes a proposal down: the number of its trial. An earlier run's proposal stands, whatever is
        given."""
        return self.journal.once(Proposed, lambda: self._proposed(proposal)).trial

    def attempt(self, number: int) -> Trial:
        """Rules, burst, analysis of the trial entered as `number`: the trial, still without a verdict."""
        history = self.journal.history
        recipe = history.proposals[number][0].recipe
        broken = [finding for finding in self.check(recipe) if finding.kind == "error"]
        if self.journal.comes(Refused, otherwise=bool(broken)):
            failure = Failure(kind=FailureKind.CONFIG, evidence="; ".join(f.message for f in broken))
            self.journal.once(Refused, lambda: Refused(trial=number, outcome=Outcome(failure=failure)), trial=number)
            return history.attempted[number]
        burst = self._burst(number, recipe, "measure")
        if self.journal.comes(Analyzed, otherwise=burst.outcome.ok and recipe.burst.trace_steps > 0):
            self.journal.once(Analyzed, lambda: self._analyzed(burst), trial=number)
        return history.attempted[number]

    def take_up(self, started: BurstStarted) -> Trial:
        """Comes to the end of a burst that an earlier run started, whatever it was for: its trial."""
        if started.purpose == "measure":
            return self.attempt(started.trial)
        return self.repeat(self.journal.history.attempted[started.trial])

    def repeat(self, trial: Trial) -> Trial:
        """Measures a trial once more, without tracing: the trial with one outcome more."""
        untraced = trial.recipe.burst.model_copy(update={"trace_steps": 0})
        self._burst(trial.number, trial.recipe.model_copy(update={"burst": untraced}), "repeat")
        return self.journal.history.attempted[trial.number]

    def conclude(self, trial: Trial, status: Status, verdict: Verdict, reason: Reason) -> Trial:
        """Writes the verdict: the judged trial."""
        judged = Judged(trial=trial.number, status=status, verdict=verdict, reason=reason)
        self.journal.once(Judged, lambda: judged, trial=trial.number)
        return self.journal.history.attempted[trial.number]

    def _proposed(self, proposal: Proposal) -> Proposed:
        history = self.journal.history
        parent = None if proposal.parent is None else history.attempted[proposal.parent]
        return Proposed(
            trial=len(history.proposals),
            parent=proposal.parent,
            phase=proposal.phase,
            fix=proposal.fix,
            reason=proposal.reason,
            fixes=proposal.fixes,
            interaction=proposal.interaction,
            recipe=proposal.recipe.model_dump(mode="json"),
            changes={} if parent is None else parent.recipe.diff(proposal.recipe),
            **asdict(proposal.predicted),
        )

    def _burst(self, trial: int, recipe: Recipe, purpose: Purpose) -> BurstFinished:
        number = self.journal.once(
            BurstStarted,
            lambda: BurstStarted(burst=self.spent + 1, trial=trial, purpose=purpose),
            trial=trial,
            purpose=purpose,
        ).burst
        burst = Burst(
            number=number, recipe=recipe, folder=self._folder(number), seed=self.seed, watch=self._latest_ranks()
        )
        return self.journal.once(BurstFinished, lambda: self._run(burst, trial), burst=number)

    def _latest_ranks(self) -> tuple[int, ...]:
        """The ranks that came latest in the last analysis, since a slow machine is looked at again in every layout, and
        those whose traces it lacked."""
        analyses = (trial.analysis for trial in reversed(self.journal.history.attempted.values()) if trial.analysis)
        last = next(analyses, None)
        if last is None:
            return ()
        late = sorted((each for each in last.ranks if each.late_us and each.late_to), key=lambda each: -each.late_us)
        lacked = last.diagnosis.cause.trace_ranks if last.diagnosis.cause else []
        return tuple(dict.fromkeys([*(each.rank for each in late[:WATCHED]), *lacked[:LACKED]]))

    def _run(self, burst: Burst, trial: int) -> BurstFinished:
        left = self._left(burst)
        for tried in count(1):
            started = self.clock()
            outcome, left = left or self._afresh(burst), None
            if outcome.failure is None:
                break
            _refuse_full_disk(self.bursts)
            if not self._is_lost(outcome.failure, tried):
                break
            self.journal.append(
                BurstLost(
                    burst=burst.number,
                    trial=trial,
                    failure=outcome.failure,
                    seconds=round(self.clock() - started, 3),
                    cost_s=outcome.cost_s,
                )
            )
            self._stop_if_the_machine_is_down(outcome.failure)
            _stop_if_killed_again(outcome.failure, tried)
            if tried >= TRIES and self.journal.history.finished:  # passed over, unless it is the first
                break
        if outcome.failure and outcome.failure.kind is FailureKind.INTERRUPTED:
            raise KeyboardInterrupt(outcome.failure.evidence)
        return BurstFinished(
            burst=burst.number,
            trial=trial,
            outcome=_finite(outcome),
            seconds=round(self.clock() - started, 3),
            ranks=outcome.ranks or burst.recipe.world_size,
        )

    def _is_lost(self, failure: Failure, tried: int) -> bool:
        """Whether it tells nothing of the recipe. A rank that was killed does not, once; twice it is this recipe's,
        unless none has run so far."""
        again = tried < TRIES or not self.journal.history.finished
        return failure.kind is FailureKind.INFRASTRUCTURE or (failure.killed and again)

    def _left(self, burst: Burst) -> Outcome | None:
        """What the burst came to that a tuner which is gone had begun: read, or waited for. None where that tells
        nothing of the recipe."""
        if not was_begun(burst):
            return None
        found = read_outcome(burst.folder)
        if found is None and isinstance(self.engine, Adopting):
            found = self.engine.adopt(burst)
        failure = found.failure if found else None
        return None if failure and (failure.kind in UNTOLD or failure.killed) else found

    def _afresh(self, burst: Burst) -> Outcome:
        _set_aside(burst.folder)
        return self.engine.run(burst)

    def _stop_if_the_machine_is_down(self, failure: Failure) -> None:
        lost = self.journal.history.lost_in_a_row
        if lost >= LOST_IN_A_ROW:
            raise ToolError(
                f"{lost} bursts in a row failed for reasons that are not the recipe's: {failure.evidence}",
                hint="look at the burst's log/, fix the machine, then continue with --resume",
            )

    def _analyzed(self, burst: BurstFinished) -> Analyzed:
        folder = self._folder(burst.burst)
        try:
            return Analyzed(burst=burst.burst, trial=burst.trial, analysis=self.analyze([folder]))
        except TraceError as error:
            return Analyzed(burst=burst.burst, trial=burst.trial, analysis=None, because=str(error))

    def _folder(self, burst: int) -> Path:
        return self.bursts / f"{burst:04d}"


def _set_aside(folder: Path) -> None:
    """Keeps what a lost burst left (its logs may say why) out of the way of the next one."""
    if not folder.exists():
        return
    aside = folder.with_name(f"{folder.name}.lost")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


def _finite(outcome: Outcome) -> Outcome:
    """The outcome with its loss curve up to the first value that is no number: JSON has no words for the others."""
    good = list(takewhile(math.isfinite, outcome.loss))
    return outcome if len(good) == len(outcome.loss) else msgspec.structs.replace(outcome, loss=good)


def _stop_if_killed_again(failure: Failure, tried: int) -> None:
    if failure.killed and tried >= TRIES:
        raise ToolError(
            f"no recipe has run so far: again a rank was killed from outside, and nothing tells by whom: "
            f"{failure.evidence}",
            hint="an administrator may, `scancel --signal=KILL`, or what watches memory (earlyoom, systemd-oomd, "
            "Kubernetes): see `dmesg` and `journalctl` of its machine, then continue with --resume",
        )


def _refuse_full_disk(folder: Path) -> None:
    if shutil.disk_usage(folder).free < FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
