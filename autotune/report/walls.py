"""Describes the wall of a trial, from its diagnosis, or from the failure if it was not traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analyzers.diagnosis import Analysis, Diagnosis, Wall
from autotune.looks.quantities import counted, duration, gib, percent
from autotune.looks.segments import steps_of
from autotune.report.document import failure_of
from policies.trial import Status, Trial
from trainer.burst import Failure


@dataclass(frozen=True, kw_only=True)
class WallSeen:
    """A wall in words.

    `recoverable`: the most time that removing it could save; `seen_in`: the steps and the trace; `evidence`: the
    sentences of `analyzers`.
    """

    wall: str
    recoverable: str
    evidence: tuple[str, ...]
    seen_in: str

    def __str__(self) -> str:
        return f"{self.wall} ({self.recoverable})" if self.recoverable else self.wall


def wall_of(trial: Trial) -> WallSeen:
    """Returns the wall of a trial. A trial that ran out of memory has the memory wall, traced or not."""
    failure = failure_of(trial)
    if trial.status is Status.OOM and failure:
        return _out_of_memory(trial, failure)
    if trial.analysis is None:
        evidence = (f"{failure.kind}: {failure.evidence}",) if failure else ("its bursts left no trace",)
        return WallSeen(wall="not seen", recoverable="", evidence=evidence, seen_in="")
    diagnosis = trial.analysis.diagnosis
    return WallSeen(
        wall=diagnosis.headline,
        recoverable=_recoverable(diagnosis),
        evidence=_evidence(diagnosis),
        seen_in=_seen_in(trial, trial.analysis),
    )


def walls_met(trials: Sequence[Trial]) -> list[str]:
    """Returns one text for each named wall, and for each cause of a verdict without one, from the trial with its
    largest share."""
    largest: dict[str, tuple[float, float, str, int]] = {}
    for trial in trials:
        diagnosis = trial.analysis.diagnosis if trial.analysis else None
        met = _met(diagnosis) if diagnosis else None
        if met is not None and met[1] > largest.get(met[0], (0.0, 0.0, "", 0))[0]:
            name, share, us, words = met
            largest[name] = share, us, words, trial.number
    ranked = sorted(largest.values(), key=lambda item: -item[0])
    return [
        f"{words} {percent(share)} of the step (up to {duration(us)}, trial {number})"
        for share, us, words, number in ranked
    ]


def _met(diagnosis: Diagnosis) -> tuple[str, float, float, str] | None:
    """Returns (name, share, microseconds, words) of the wall or cause in a diagnosis; None if it has neither."""
    finding, cause = diagnosis.finding(diagnosis.wall), diagnosis.cause
    if finding is not None:
        return finding.wall.value, finding.share, finding.recoverable_us, finding.wall.value
    if diagnosis.wall is Wall.UNDETERMINED and cause is not None and cause.lost_us > 0:
        return cause.name, cause.share, cause.lost_us, f"{cause.headline},"
    return None


def burst_folders(trial: Trial) -> str:
    """Returns the folders of the trial's bursts within the study: `bursts/0003, bursts/0005`."""
    return _folders(trial.bursts)


def _folders(bursts: Sequence[int]) -> str:
    return ", ".join(f"bursts/{number:04d}" for number in bursts) or "no burst"


def where_it_failed(failure: Failure) -> str:
    """Returns `in backward on rank 1`; unknown parts are left out."""
    phase = f" in {failure.phase.value}" if failure.phase else ""
    rank = f" on rank {failure.rank}" if failure.rank is not None else ""
    return f"{phase}{rank}".strip()


def _out_of_memory(trial: Trial, failure: Failure) -> WallSeen:
    limit = next((outcome.limit_gib for outcome in trial.outcomes if outcome.limit_gib), None)
    under = f"limit {gib(limit)} per rank" if limit else ""
    evidence = tuple(each for each in (f"out of memory {where_it_failed(failure)}".strip(), failure.evidence) if each)
    return WallSeen(
        wall=Wall.MEMORY.value,
        recoverable=", ".join(part for part in ("does not fit", under) if part),
        evidence=evidence,
        seen_in=burst_folders(trial),
    )


def _recoverable(diagnosis: Diagnosis) -> str:
    finding, cause = diagnosis.finding(diagnosis.wall), diagnosis.cause
    if finding is None and cause is not None and cause.lost_us > 0:
        return f"{duration(cause.lost_us)}, {percent(cause.share)} of the step"
    if finding is None:
        return ""
    return f"R = {duration(finding.recoverable_us)}, {percent(finding.share)} of the step"


def _evidence(diagnosis: Diagnosis) -> tuple[str, ...]:
    finding, cause = diagnosis.finding(diagnosis.wall), diagnosis.cause
    led_to = tuple(cause.evidence) if cause else ()
    return tuple(finding.evidence) if finding and finding.evidence else (diagnosis.because, *led_to)


def _seen_in(trial: Trial, analysis: Analysis) -> str:
    """Returns the traced steps and ranks of a trial's first burst; repeats are not traced."""
    steps = max((len(steps_of(trace)) for trace in analysis.traces), default=0)
    ranks = counted(len(analysis.traces), "rank")
    return f"{counted(steps, 'traced step')} of {ranks}, {_folders(trial.bursts[:1])}"
