"""Diagnoses a failed burst from its evidence: reports, deaths, phases, logs. Pure; the launcher collects the evidence.

The cause is the first rank that failed by itself. A rank that only reports that another one is gone ("Connection closed
by peer") or late is a witness, never the cause. `trainer.failure_words` has the meanings of messages.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainer.burst import BurstPhase, Failure, FailureKind
from trainer.failure_words import WITNESSED, Words, match
from trainer.rank_report import RankError, RankReport


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of a rank that did not report. `code` as in `subprocess`: negative is a signal; None if unknown."""

    at_s: float  # time.time() when it was last seen alive; witnesses report later
    code: int | None


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    rank: int
    phase: BurstPhase = BurstPhase.START
    report: RankReport | None = None
    death: Death | None = None
    log: str = ""  # end of its output of this burst; after a deadline also the stacks of its threads
    stopped: bool = False  # held by SIGSTOP or a debugger


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence of a burst that has ended. All of it may be absent: then nothing failed."""

    ranks: Sequence[RankEvidence]
    launcher_code: int | None = None  # exit code of the process that started the ranks, if it ended by itself
    launcher_log: str = ""
    overdue_s: float | None = None  # the deadline that passed, in seconds
    ended_by: Failure | None = None  # the failure if a scheduler or a lost connection ended the ranks
    oom_kills: int = 0  # processes the kernel killed for memory during the burst


# messages that do not name the reason of the failure; the log does
_UNSPECIFIC = re.compile(r"unhandled (cuda|system) error|NCCL error", re.IGNORECASE)
_KERNEL_OOM = Words(FailureKind.OOM, "", "SIGKILL while the kernel's oom_kill counter rose")
STACK = "(most recent call first):"  # first line of each thread's stack by Python's faulthandler
# frames in which a thread waits for other ranks
_WAITING = re.compile(r"torch/distributed/|param_and_grad_buffer\.py|p2p_communication\.py")
_INNERMOST = 3  # innermost frames of a stack, which show what a thread waits for; outer ones are inside wrappers anyway
_LONGEST_EVIDENCE = 500  # torch's message on a GPU without memory has up to 450 characters


@dataclass(frozen=True, kw_only=True)
class _RankFailure:
    """One rank's evidence of why it stopped. `words`: None if no known wording matched."""

    rank: RankEvidence
    at_s: float
    words: Words | None
    line: str

    @property
    def is_witness(self) -> bool:
        return self.words in WITNESSED

    @property
    def was_terminated(self) -> bool:
        return self.rank.death is not None and self.rank.death.code == -signal.SIGTERM

    def as_failure(self) -> Failure:
        error = self.rank.report.error if self.rank.report else None
        return Failure(
            kind=self.words.kind if self.words else FailureKind.CRASH,
            phase=error.phase if error else self.rank.phase,
            rank=self.rank.rank,
            evidence=" ".join(self.line.split())[:_LONGEST_EVIDENCE],
            killed=self.words is None and self.rank.death is not None and self.rank.death.code == -signal.SIGKILL,
        )


def classify(evidence: Evidence) -> Failure | None:
    """Returns the failure that the evidence shows; None if every rank reported and no report shows a problem."""
    failures = sorted(_rank_failures(evidence), key=lambda failure: failure.at_s)
    causes = [each for each in failures if not each.is_witness and not each.was_terminated]
    if causes:
        return causes[0].as_failure()
    rules = (_scheduled, _launcher_killed, _overdue, _bad_result, _witnessed, _launcher_failed, _terminated)
    return next((failure for rule in rules if (failure := rule(evidence, failures))), None)


def _rank_failures(evidence: Evidence) -> Iterator[_RankFailure]:
    """Yields the failure of each rank that reported an error or ended without a report."""
    for rank in evidence.ranks:
        if rank.report is not None and rank.report.error is not None:
            words, line = _words_of_error(rank.report.error, rank.log)
            yield _RankFailure(rank=rank, at_s=rank.report.error.at_s, words=words, line=line)
        elif rank.report is None and rank.death is not None and not _killed_with_launcher(rank.death, evidence):
            words, line = _words_of_death(rank, rank.death, evidence)
            yield _RankFailure(rank=rank, at_s=rank.death.at_s, words=words, line=line)


def _killed_with_launcher(death: Death, evidence: Evidence) -> bool:
    """Returns whether a rank was killed together with the process that started it, which the kernel or a scheduler
    killed."""
    killed = evidence.launcher_code is not None and evidence.launcher_code < 0
    # an OOM kill that a scheduler reports has ended only one rank
    scheduled = evidence.ended_by is not None and evidence.ended_by.kind is not FailureKind.OOM
    return (killed or scheduled) and death.code in (None, -signal.SIGKILL)


def _words_of_error(error: RankError, log: str) -> tuple[Words | None, str]:
    """Returns the meaning of an exception and the line that shows it: by its own text, the exceptions it was raised
    from, and the log if the text is unspecific; else None and its own text."""
    head = f"{error.type}: {error.message}"
    raised = [line for line in error.traceback.splitlines() if line and not line[0].isspace()]
    texts = [[head.replace("\n", " ")], raised, log.splitlines() if _UNSPECIFIC.search(head) else []]
    for lines in texts:
        if found := match(lines, error.phase):
            return found
    return None, head


def _words_of_death(rank: RankEvidence, death: Death, evidence: Evidence) -> tuple[Words | None, str]:
    """Returns the meaning of a death without a report, and its evidence: killed for memory, a match in the log, else
    None, a plain crash."""
    how = f"rank {rank.rank} {_ending(death.code)} in {rank.phase.value}"
    if death.code == -signal.SIGKILL and evidence.oom_kills:
        kernel = f"the kernel killed {evidence.oom_kills} process(es) for memory during it"
        return _KERNEL_OOM, f"{how}; {kernel}"
    last = _last_line(rank.log)
    found = match(rank.log.splitlines(), rank.phase)
    if found and death.code != -signal.SIGKILL:
        return found[0], f"{how}: {found[1]}"
    return None, f"{how}; its last line: {last}" if last else f"{how}; it wrote nothing"


def _ending(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _scheduled(evidence: Evidence, failures: Sequence[_RankFailure]) -> Failure | None:
    """Returns the failure of a scheduler or a connection that ended the ranks, if any."""
    return evidence.ended_by


def _launcher_killed(evidence: Evidence, failures: Sequence[_RankFailure]) -> Failure | None:
    code = evidence.launcher_code
    if code is None or code >= 0:
        return None
    unasked = FailureKind.OOM if evidence.oom_kills else FailureKind.INFRASTRUCTURE
    kind = FailureKind.INTERRUPTED if code == -signal.SIGTERM else unasked
    phase = max((rank.phase for rank in evidence.ranks), key=list(BurstPhase).index, default=None)
    return Failure(kind=kind, phase=phase, evidence=f"the launcher {_ending(code)}")


def _overdue(evidence: Evidence, failures: Sequence[_RankFailure]) -> Failure | None:
    """Returns the failure of a deadline that passed.

    The hanging rank is the one that is not waiting for the others, if there is exactly one.
    """
    if evidence.overdue_s is None:
        return None
    silent = [rank for rank in evidence.ranks if rank.report is None]
    suspects = [rank for rank in silent if rank.stopped or not _waits_for_peers(rank.log)]
    culprit = suspects[0] if len(suspects) == 1 else None
    where = "; ".join(f"rank {rank.rank} {_whereabouts(rank)}" for rank in (suspects or silent))
    shown = culprit or (silent[0] if silent else None)
    return Failure(
        kind=FailureKind.HANG,
        phase=shown.phase if shown else None,
        rank=culprit.rank if culprit else None,
        evidence=f"no end after {evidence.overdue_s:g} s: {where}"[:_LONGEST_EVIDENCE],
    )


def _waits_for_peers(log: str) -> bool:
    """Returns whether a thread of the rank is inside a collective, by the stacks at the end of its log."""
    innermost = ("\n".join(stack.strip().splitlines()[:_INNERMOST]) for stack in log.split(STACK)[1:])
    return any(_WAITING.search(frames) for frames in innermost)


def _whereabouts(rank: RankEvidence) -> str:
    """Returns where a silent rank is, from its stacks or its last line."""
    if rank.stopped:
        return f"is stopped in {rank.phase.value}"
    before, shown, stacks = rank.log.rpartition(STACK)  # the main thread's stack comes last
    if shown:
        return (
            f"in {rank.phase.value} at {stacks.strip().splitlines()[0].strip()}" if stacks.strip() else "has no stack"
        )
    return f"in {rank.phase.value}, last line: {_last_line(before or rank.log) or 'none'}"


def _bad_result(evidence: Evidence, failures: Sequence[_RankFailure]) -> Failure | None:
    """Returns the failure that complete reports show: a loss that is not finite, or replicas that diverged."""
    reports = [rank.report for rank in evidence.ranks if rank.report is not None]
    for report in reports:
        if (step := next((i for i, loss in enumerate(report.loss) if not math.isfinite(loss)), None)) is not None:
            text = f"loss of step {step + 1} is {report.loss[step]}"
            return Failure(kind=FailureKind.NAN, phase=BurstPhase.FORWARD, rank=report.rank, evidence=text)
    for report in reports:
        if report.diverged:
            return Failure(
                kind=FailureKind.DIVERGED, phase=BurstPhase.CHECK, rank=report.rank, evidence=report.diverged
            )
    return None


def _witnessed(evidence: Evidence, failures: Sequence[_RankFailure]) -> Failure | None:
    """Returns the failure of ranks that only report another one as gone or late: that of the silent rank, if there is
    exactly one."""
    witnesses = [failure for failure in failures if failure.is_witness]
    if not witnesses:
        return None
    reporting = {failure.rank.rank for failure in witnesses}
    meant = [rank for rank in evidence.ranks if rank.rank not in reporting and rank.report is None]
    culprit = meant[0] if len(meant) == 1 else None
    reported = witnesses[0].as_failure()
    return Failure(
        kind=reported.kind,
        phase=culprit.phase if culprit else reported.phase,
        rank=culprit.rank if culprit else None,
        evidence=f"rank {reported.rank} reports: {reported.evidence}",
    )


def _terminated(evidence: Evidence, failures: Sequence[_RankFailure]) -> Failure | None:
    """Returns the failure of ranks that were asked to end, but not by us: by a scheduler or a user."""
    if not failures:
        return None
    return Failure(kind=FailureKind.INTERRUPTED, phase=failures[0].rank.phase, evidence=failures[0].line)


def _launcher_failed(evidence: Evidence, failures: Sequence[_RankFailure]) -> Failure | None:
    """Returns the failure if the launcher ended and no rank's evidence shows why: by a log, else of the machine."""
    ended = {failure.rank.rank for failure in failures}
    silent = [rank for rank in evidence.ranks if rank.report is None and rank.rank not in ended]
    if evidence.launcher_code is None or not silent:
        return None
    for log, rank in [*((r.log, r.rank) for r in silent), (evidence.launcher_log, None)]:
        if found := match(log.splitlines(), BurstPhase.START):
            return Failure(kind=found[0].kind, phase=BurstPhase.START, rank=rank, evidence=found[1][:_LONGEST_EVIDENCE])
    if failures:
        return None
    last = _last_line(evidence.launcher_log)
    text = f"the launcher {_ending(evidence.launcher_code)}: {last}"
    return Failure(kind=FailureKind.INFRASTRUCTURE, phase=BurstPhase.START, evidence=text[:_LONGEST_EVIDENCE])


def _last_line(log: str) -> str:
    lines: Iterable[str] = (line.strip() for line in reversed(log.splitlines()))
    return next((line for line in lines if line), "")
