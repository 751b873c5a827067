"""Runs the bursts of a recipe, analyses their traces, and makes a trial of the results, as the loop asks.

Every step goes through the journal, so that a resumed study reads what was measured and runs only the rest. Failures of
the machine are kept apart from failures of the recipe.
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
from trainer.burst import Burst, Failure, FailureKind, Outcome, read_outcome, was_started
from trainer.engines import Adopting, Engine
from trainer.errors import ToolError
from trainer.recipe import Recipe
from trainer.recipe.rules import Finding, FindingKind

MAX_LATE_RANKS = 2  # latest ranks of the last analysis, which the next burst traces again
MAX_MISSING_RANKS = 4  # ranks whose traces the last analysis lacked, which the next burst traces
MAX_TRIES = 2  # starts of a burst that fails because of the machine, not the recipe
MAX_LOST_IN_A_ROW = 3  # bursts lost to the machine: more than one bad node, so the study stops
NOT_THE_RECIPE = (FailureKind.INFRASTRUCTURE, FailureKind.INTERRUPTED)  # failures that the recipe did not cause
MIN_FREE_BYTES = 1 << 20  # with less free space a failed burst is blamed on the full disk


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Runs bursts within limits: `budget` bursts, `max_gpu_hours`, and none that would end after `until` (seconds since
    the epoch). `reserved` bursts are kept for the ablation; `bursts`: the study's folder of run folders; `nodes`: of
    the launcher, None for any number."""

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
    nodes: int | None = None
    reserved: int = 0

    @property
    def spent(self) -> int:
        return len(self.journal.history.finished)

    @property
    def may_burst(self) -> bool:
        """Returns whether the next step may be a burst: it is recorded, or the limits allow it."""
        return self.journal.next_is(BurstStarted, otherwise=self.spent_out is None)

    @property
    def spent_out(self) -> Reason | None:
        """Returns the limit that another burst, as long as the last one, would exceed; None if there is none."""
        history, hours = self.journal.history, self.burst_gpu_hours
        last = history.finished[-1] if history.finished else None
        to_come = 1 + self.reserved
        if self.spent + to_come > self.budget:
            bursts = {"bursts": self.spent, "budget": self.budget}
            kept = {"reserved": self.reserved} if self.reserved else {}
            return Reason(kind=ReasonKind.BUDGET_SPENT, figures=bursts | kept)
        if self.max_gpu_hours is not None and history.gpu_hours + to_come * hours > self.max_gpu_hours:
            used = {"gpu_hours": history.gpu_hours, "max_gpu_hours": self.max_gpu_hours, "burst_gpu_hours": hours}
            return Reason(kind=ReasonKind.GPU_HOURS_SPENT, figures=used | {"unit": history.unit})
        if self.until is not None and self.clock() + to_come * (last.seconds if last else 0.0) > self.until:
            return Reason(kind=ReasonKind.DEADLINE_REACHED)
        return None

    def affords(self, recipe: Recipe, *, bursts: int = 1, more_gpu_hours: float = 0.0) -> bool:
        """Returns whether the recipe itself, not a proxy, can run: the launcher has its nodes, and `max_gpu_hours`
        allows `bursts` bursts of it, each as long as the last, and `more_gpu_hours` GPU-hours for others."""
        history, last = self.journal.history, self.journal.history.finished[-1:]
        hours = bursts * sum(burst.gpu_s / burst.ranks for burst in last) * recipe.world_size / 3600
        limit = math.inf if self.max_gpu_hours is None else self.max_gpu_hours
        return not self._too_large(recipe) and history.gpu_hours + hours + more_gpu_hours <= limit

    @property
    def burst_gpu_hours(self) -> float:
        """Returns the GPU-hours of the last burst, expected of the next one too; 0 before the first."""
        finished = self.journal.history.finished
        return finished[-1].gpu_s / 3600 if finished else 0.0

    def enter(self, proposal: Proposal) -> int:
        """Writes the proposal to the journal and returns its trial number. On resume, a recorded proposal replaces the
        argument."""
        return self.journal.replay_or_append(Proposed, lambda: self._proposed(proposal)).trial

    def attempt(self, number: int) -> Trial:
        """Checks, runs and analyses the trial entered as `number`; returns it without a verdict."""
        history = self.journal.history
        recipe = history.proposals[number][0].ran
        broken = [
            finding.message for finding in self.check(recipe) if finding.kind is FindingKind.ERROR
        ] or self._too_large(recipe)
        if self.journal.next_is(Refused, otherwise=bool(broken)):
            failure = Failure(kind=FailureKind.CONFIG, evidence="; ".join(broken))
            self.journal.replay_or_append(
                Refused, lambda: Refused(trial=number, outcome=Outcome(failure=failure)), trial=number
            )
            return history.attempted[number]
        burst = self._burst(number, recipe, "measure")
        if self.journal.next_is(Analyzed, otherwise=burst.outcome.ok and recipe.burst.trace_steps > 0):
            self.journal.replay_or_append(Analyzed, lambda: self._analyzed(burst), trial=number)
        return history.attempted[number]

    def replay(self) -> None:
        """Replays the recorded events as they are, and finishes the burst that was running."""
        while (past := self.journal.next_recorded) is not None:
            if isinstance(past, BurstStarted):
                self.finish(past)
            else:
                self.journal.replay_next()

    def finish(self, started: BurstStarted) -> Trial:
        """Finishes a burst that an earlier run started, whatever its purpose; returns its trial."""
        if started.purpose == "measure":
            return self.attempt(started.trial)
        return self.repeat(self.journal.history.attempted[started.trial])

    def repeat(self, trial: Trial) -> Trial:
        """Measures a trial again, without tracing; returns the trial with the additional outcome."""
        untraced = trial.ran.burst.model_copy(update={"trace_steps": 0})
        self._burst(trial.number, trial.ran.model_copy(update={"burst": untraced}), "repeat")
        return self.journal.history.attempted[trial.number]

    def conclude(self, trial: Trial, status: Status, verdict: Verdict, reason: Reason) -> Trial:
        """Writes the verdict and returns the judged trial."""
        judged = Judged(trial=trial.number, status=status, verdict=verdict, reason=reason)
        self.journal.replay_or_append(Judged, lambda: judged, trial=trial.number)
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
            fidelity=proposal.fidelity,
            **asdict(proposal.predicted),
        )

    def _too_large(self, recipe: Recipe) -> list[str]:
        """Returns why the launcher has too few nodes for a recipe; [] if it has enough."""
        if self.nodes is None or recipe.cluster.nodes <= self.nodes:
            return []
        return [
            f"it needs {recipe.cluster.nodes} nodes and the launcher has {self.nodes}; it has no proxy of that size"
        ]

    def _burst(self, trial: int, recipe: Recipe, purpose: Purpose) -> BurstFinished:
        fidelity = self.journal.history.proposals[trial][0].fidelity
        number = self.journal.replay_or_append(
            BurstStarted,
            lambda: BurstStarted(burst=self.spent + 1, trial=trial, purpose=purpose, fidelity=fidelity),
            trial=trial,
            purpose=purpose,
            fidelity=fidelity,
        ).burst
        burst = Burst(
            number=number, recipe=recipe, folder=self._folder(number), seed=self.seed, watch=self._latest_ranks()
        )
        return self.journal.replay_or_append(BurstFinished, lambda: self._run(burst, trial), burst=number)

    def _latest_ranks(self) -> tuple[int, ...]:
        """Returns the ranks that the next burst traces again: up to MAX_LATE_RANKS that were latest in the last
        analysis, so that a slow machine shows in every layout, and up to MAX_MISSING_RANKS whose traces it lacked."""
        analyses = (trial.analysis for trial in reversed(self.journal.history.attempted.values()) if trial.analysis)
        last = next(analyses, None)
        if last is None:
            return ()
        late = sorted((each for each in last.ranks if each.late_us and each.late_to), key=lambda each: -each.late_us)
        lacked = last.diagnosis.cause.trace_ranks if last.diagnosis.cause else []
        return tuple(dict.fromkeys([*(each.rank for each in late[:MAX_LATE_RANKS]), *lacked[:MAX_MISSING_RANKS]]))

    def _run(self, burst: Burst, trial: int) -> BurstFinished:
        left = self._recovered(burst)
        for attempt_count in count(1):
            started = self.clock()
            outcome, left = left or self._run_from_start(burst), None
            if outcome.failure is None:
                break
            _refuse_full_disk(self.bursts)
            if not self._is_lost(outcome.failure, attempt_count):
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
            _stop_if_killed_again(outcome.failure, attempt_count)
            if (
                attempt_count >= MAX_TRIES and self.journal.history.finished
            ):  # give it up, unless no burst has finished yet
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

    def _is_lost(self, failure: Failure, attempt_count: int) -> bool:
        """Returns whether a failure is the machine's. A killed rank counts as the machine's the first time, and the
        second time as the recipe's, unless no burst has finished yet."""
        again = attempt_count < MAX_TRIES or not self.journal.history.finished
        return failure.kind is FailureKind.INFRASTRUCTURE or (failure.killed and again)

    def _recovered(self, burst: Burst) -> Outcome | None:
        """Returns the outcome of a burst that an earlier tuner started: read from its folder, or awaited.

        None if it did not end, or failed for a reason that says nothing about the recipe.
        """
        if not was_started(burst):
            return None
        found = read_outcome(burst.folder)
        if found is None and isinstance(self.engine, Adopting):
            found = self.engine.adopt(burst)
        failure = found.failure if found else None
        return None if failure and (failure.kind in NOT_THE_RECIPE or failure.killed) else found

    def _run_from_start(self, burst: Burst) -> Outcome:
        _set_aside(burst.folder)
        return self.engine.run(burst)

    def _stop_if_the_machine_is_down(self, failure: Failure) -> None:
        lost = self.journal.history.lost_in_a_row
        if lost >= MAX_LOST_IN_A_ROW:
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
    """Renames the folder of a lost burst to `<name>.lost`: its logs may say why, and the next try needs the name."""
    if not folder.exists():
        return
    aside = folder.with_name(f"{folder.name}.lost")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


def _finite(outcome: Outcome) -> Outcome:
    """Cuts the loss curve at its first NaN or infinity, which JSON cannot represent."""
    good = list(takewhile(math.isfinite, outcome.loss))
    return outcome if len(good) == len(outcome.loss) else msgspec.structs.replace(outcome, loss=good)


def _stop_if_killed_again(failure: Failure, attempt_count: int) -> None:
    if failure.killed and attempt_count >= MAX_TRIES:
        raise ToolError(
            f"no recipe has run so far: again a rank was killed from outside, and it is not known by whom: "
            f"{failure.evidence}",
            hint="an administrator may, `scancel --signal=KILL`, or what watches memory (earlyoom, systemd-oomd, "
            "Kubernetes): see `dmesg` and `journalctl` of its machine, then continue with --resume",
        )


def _refuse_full_disk(folder: Path) -> None:
    if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
