"""Finds the cause behind a verdict without a wall, and the ranks on which the host is the wall.

Waiting for slower ranks is traced to the reason why they are late, and a bubble to the pipeline's stages. Ranks whose
traces are needed to decide are named. Thin evidence gives no cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from analyzers import verdict
from analyzers.diagnosis import Cause, Diagnosis, Wall
from analyzers.kernel_classes import PIPELINE
from analyzers.ranks.job import Job
from analyzers.ranks.late_ranks import MAIN_CAUSE, LateBy, LateRank
from analyzers.walls.host import own_us as own_host_us
from analyzers.wording import ms, percent

RANKS_NAMED = 4  # most ranks named in a sentence
MAX_RANKS_TO_TRACE = 8  # most ranks whose traces are requested
MIN_US = 1e-3  # shorter waiting counts as none
# late ranks cause the host wall if their host time beyond the median rank's is at least this share of it; uneven stages
# cause a pipeline bubble if the longest stage's work beyond the mean stage's is
MIN_LATE_HOST_SHARE = 0.5
# headline by the cause of lateness; {}: the late ranks
LATE: Mapping[LateBy, str] = {
    LateBy.HOST: "host on {}",
    LateBy.EXPERTS: "imbalance: experts of {}",
    LateBy.DEVICE: "slow device: {}",
    LateBy.UNEVEN_WORK: "uneven sequences: {}",
    LateBy.ALLOCATOR: "the allocator on {}",
    LateBy.TRANSFERS: "slow links: {}",
    LateBy.COPIES: "copies on {}",
}
BUBBLE, STAGES = "pipeline bubble", "uneven pipeline stages: rank {} has most to do"
# losses other than waiting for a rank: name and headline
OTHER_LOSSES = {
    verdict.OTHER_STREAMS: ("other_streams", "waits between streams"),
    verdict.TURNAROUND: ("turnaround", "gaps between kernels"),
    verdict.NOT_IN_THE_TRACE: ("unattributed", "idle for an unknown cause"),
    verdict.ONE_WAY_COPIES: ("copies", "copies of input or weights"),
}


def with_cause(diagnosis: Diagnosis, job: Job) -> Diagnosis:
    """Returns the diagnosis with its cause, and with the waiting for other ranks by cause."""
    return replace(_with_own_cause(diagnosis, job), waits=_waits(job))


def _waits(job: Job) -> dict[str, float]:
    """Returns waiting by cause, without causes below MIN_NAMED_SHARE, the largest first."""
    known = {str(cause): us for cause, us in job.lateness.us.items() if cause is not LateBy.UNKNOWN}
    bubble = {str(LateBy.BUBBLE): job.step.pipeline_wait_us} if job.step else {}
    shown = ((cause, us) for cause, us in (known | bubble).items() if job.share(us) >= verdict.MIN_NAMED_SHARE)
    return dict(sorted(shown, key=lambda item: -item[1]))


def _with_own_cause(diagnosis: Diagnosis, job: Job) -> Diagnosis:
    if diagnosis.wall is Wall.HOST:
        late = _late_hosts(diagnosis, job)
        cause = _late(job, LateBy.HOST, late, diagnosis.walls[0].recoverable_us) if late else None
        return replace(diagnosis, cause=cause, ranks=cause.ranks if cause else [])
    if diagnosis.wall is Wall.COMMUNICATION:
        return replace(diagnosis, cause=_possibly_late(diagnosis, job))
    if diagnosis.wall is not Wall.UNDETERMINED or job.step is None:
        return diagnosis
    find = CAUSES.get(diagnosis.doubt)
    return replace(diagnosis, cause=find(diagnosis, job) if find else None)


def _late_hosts(diagnosis: Diagnosis, job: Job) -> list[LateRank]:
    """Returns the ranks that are late because of their hosts; [] unless most of the host wall is on them rather than on
    every rank."""
    finding = diagnosis.finding(Wall.HOST)
    late = [one for one in job.lateness.late_by(LateBy.HOST) if one.cause is LateBy.HOST]
    if finding is None or not late or len(job.by_rank) < 2:
        return []
    hosts_us = sorted(own_host_us(step) for step in job.by_rank.values())
    usual = hosts_us[(len(hosts_us) - 1) // 2]  # the lower median: of two ranks, the faster one
    return late if finding.recoverable_us - usual >= MIN_LATE_HOST_SHARE * finding.recoverable_us else []


def _lost(diagnosis: Diagnosis, job: Job) -> Cause | None:
    """Returns the cause of the largest loss that is not a wall."""
    what, share = verdict.lost_elsewhere(job, diagnosis.walls)
    step_us = job.step.duration_us if job.step else 0.0
    if what == verdict.BUBBLE:
        return _bubble(job, share * step_us)
    if what == verdict.WAITING:
        return _waiting(job, share * step_us)
    name, headline = OTHER_LOSSES[what]
    return Cause(name=name, headline=headline, lost_us=share * step_us, share=share)


def _waiting(job: Job, lost_us: float) -> Cause:
    """Returns the cause of most of the waiting for other ranks.

    Late hosts are left out, since they belong to the host wall.
    """
    open_ones: dict[LateBy, float] = {
        cause: us for cause, us in job.lateness.us.items() if cause in LATE and cause is not LateBy.HOST
    }
    whole = job.lateness.total_us * (1 - job.lateness.share(LateBy.HOST))
    cause = max(open_ones, key=lambda one: open_ones[one], default=LateBy.UNKNOWN)
    late = job.lateness.late_by(cause)
    if late and open_ones.get(cause, 0.0) >= max(MAIN_CAUSE * whole, MIN_US):
        return _late(job, cause, late, lost_us)
    if job.world_size is not None and job.world_size > max(len(job.ranks), 1):
        return _untraced(job, "waiting for ranks that were not traced", lost_us)
    return Cause(name=LateBy.UNKNOWN.value, headline=verdict.WAITING, lost_us=lost_us, share=job.share(lost_us))


def _late(job: Job, cause: LateBy, late: Sequence[LateRank], lost_us: float) -> Cause:
    ranks = [one.place.rank for one in late if one.place.rank is not None]
    return Cause(
        name=cause.value,
        headline=LATE[cause].format(_who([str(one.place) for one in late], len(job.ranks))),
        lost_us=lost_us,
        share=job.share(lost_us),
        ranks=ranks,
        evidence=[str(one) for one in late[:RANKS_NAMED]],
    )


def _who(named: Sequence[str], of: int) -> str:
    """Returns `rank 3`, `rank 3 and rank 5` or `rank 3, rank 5 and 6 more`; `every rank by turns` if all of several
    ranks are late."""
    if len(named) == of > 1:
        return "every rank by turns"
    if len(named) <= 2:
        return " and ".join(named)
    return f"{', '.join(named[:2])} and {len(named) - 2} more"


def _bubble(job: Job, lost_us: float) -> Cause:
    """Returns the cause of waiting for other pipeline stages: a stage with more work than the others, or filling the
    pipeline."""
    own = {rank: step.own_us for rank, step in job.by_rank.items() if step.pipeline_wait_us > 0 or _is_staged(step)}
    share = job.share(lost_us)
    if len(own) < 2:
        evidence = (
            [] if len(job.ranks) > 1 else ["one rank of every pipeline stage would show whether stages are uneven"]
        )
        return Cause(
            name="bubble",
            headline=BUBBLE,
            lost_us=lost_us,
            share=share,
            evidence=evidence,
            trace_ranks=_ranks_to_trace(job, [PIPELINE]),
        )
    longest = max(own, key=lambda rank: own[rank])
    least = min(own, key=lambda rank: own[rank])
    uneven_us = own[longest] - float(np.mean(list(own.values())))
    text = (
        f"the stage of rank {longest} has {ms(own[longest])} ms of own work per step, that of rank {least} "
        f"{ms(own[least])} ms: even stages would recover {percent(job.share(uneven_us))} of the step at most"
    )
    uneven = uneven_us >= MIN_LATE_HOST_SHARE * lost_us
    return Cause(
        name="uneven_stages" if uneven else "bubble",
        headline=STAGES.format(longest) if uneven else BUBBLE,
        lost_us=lost_us,
        share=share,
        ranks=[longest] if uneven else [],
        evidence=[text] if job.share(uneven_us) >= verdict.MIN_NAMED_SHARE else [],
    )


def _is_staged(step: object) -> bool:
    return PIPELINE in getattr(step, "communication_by_kind", {})


def _untraced(job: Job, headline: str, lost_us: float = 0.0, kinds: Sequence[str] = ()) -> Cause:
    missing = _ranks_to_trace(job, kinds or list(job.untraced))
    return Cause(
        name="untraced_ranks",
        headline=headline,
        lost_us=lost_us,
        share=job.share(lost_us),
        evidence=[f"{len(job.by_rank) or 1} of {job.world_size} ranks are traced"] if job.world_size else [],
        trace_ranks=missing,
    )


def _ranks_to_trace(job: Job, kinds: Sequence[str]) -> list[int]:
    """Returns up to MAX_RANKS_TO_TRACE untraced ranks, evenly spread over the process groups of these kinds.

    If the traces name no group: all other ranks of the job, if there are few.
    """
    ranks = sorted({rank for kind in kinds for rank in job.untraced.get(kind, ())})
    others = [rank for rank in range(job.world_size or 0) if rank not in job.by_rank]
    if not any(job.untraced.values()) and len(others) <= MAX_RANKS_TO_TRACE:
        return others
    if len(ranks) <= MAX_RANKS_TO_TRACE:
        return ranks
    return [ranks[index * len(ranks) // MAX_RANKS_TO_TRACE] for index in range(MAX_RANKS_TO_TRACE)]


def _possibly_waiting(diagnosis: Diagnosis, job: Job) -> Cause | None:
    step, finding = job.step, diagnosis.finding(Wall.COMMUNICATION)
    if step is None or finding is None:
        return None
    kinds = [kind for kind, us in step.may_wait_by_kind.items() if us > 0]
    headline = "communication, or waiting for ranks that were not traced"
    return _untraced(job, headline, finding.recoverable_us * step.may_wait_share, kinds)


def _possibly_late(diagnosis: Diagnosis, job: Job) -> Cause | None:
    """Returns untraced ranks as a possible cause of a communication wall: a rank that is late in every layer looks like
    slow transfers. None if no rank of its kinds of communication lacks a trace."""
    finding = diagnosis.finding(Wall.COMMUNICATION)
    kinds = [kind for kind, us in finding.parts.items() if job.share(us) >= verdict.MIN_NAMED_SHARE] if finding else []
    found = _untraced(job, str(Wall.COMMUNICATION), 0.0, kinds) if kinds else None
    if found is None or not found.trace_ranks:
        return None
    return replace(found, evidence=[f"{found.evidence[0]}: if another one is late, this is waiting for it"])


def _another_stage(diagnosis: Diagnosis, job: Job) -> Cause | None:
    least = max(diagnosis.walls, key=lambda one: one.least_us if one.least_us is not None else one.recoverable_us)
    return _untraced(
        job, f"{diagnosis.walls[0].wall} or {least.wall}: a stage that was not traced decides", 0.0, [PIPELINE]
    )


def _between(diagnosis: Diagnosis, job: Job) -> Cause | None:
    walls = " or ".join(diagnosis.between)
    return Cause(name="too_close", headline=f"{walls}: too close to tell") if walls else None


CAUSES: Mapping[str, Callable[[Diagnosis, Job], Cause | None]] = {
    "no_wall_is_larger": _lost,
    "may_be_waiting": _possibly_waiting,
    "another_stage": _another_stage,
    "too_close": _between,
    "may_be_the_hosts": _between,
}
