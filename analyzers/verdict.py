"""Turns findings into a verdict: the wall that costs most, or undetermined and why.

A wrong wall would waste hours of cluster time, so thin evidence gives no wall.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analyzers.diagnosis import Diagnosis, Wall, WallFinding
from analyzers.ranks.job import Job
from analyzers.ranks.late_ranks import LateBy
from analyzers.wording import percent

# shares of the average step, except `classified`: the share of device time that the kernel table explains
THRESHOLDS = {
    "classified": 0.90,  # minimum; below it the classes themselves are in doubt
    "unattributed": 0.15,  # maximum
    "share": 0.05,  # minimum share of the leading wall
    "margin": 0.02,  # minimum lead over the next wall
    "compute_bound": 0.80,  # share of compute in a step with no other large loss
}
MIN_NAMED_SHARE = 0.005  # share of the step: a smaller wall is not named as next
WAITING = "waiting for slower ranks"
BUBBLE = "the pipeline's bubble"
OTHER_STREAMS = "work that was launched but waits for another stream, a copy or an event"
TURNAROUND = "the gap between queued kernels"
NOT_IN_THE_TRACE = "idle time whose cause is not in the trace"
ONE_WAY_COPIES = "copying input or weights under no compute"
EXPECTED_WAITING = 0.5  # share of possible waiting that is assumed to be waiting


@dataclass(frozen=True, kw_only=True)
class _Case:
    """The input of the abstentions: the job, the leading wall and the next, the largest loss that is not a wall, the
    lead (a share of the step, with half of possible waiting taken off the next wall), and all findings."""

    job: Job
    leader: WallFinding
    next: WallFinding | None
    elsewhere: tuple[str, float]
    lead: float
    findings: Sequence[WallFinding]


def lost_elsewhere(job: Job, findings: Sequence[WallFinding]) -> tuple[str, float]:
    """Returns the largest loss that is not a wall, as a phrase, and its share of the step."""
    step = job.step
    if step is None:
        return "", 0.0
    memory = next((f for f in findings if f.wall is Wall.MEMORY), None)
    offloaded = memory.parts.get("offload_copies", 0.0) if memory else 0.0
    waited = max(step.waiting_us + step.bubble_us - step.pipeline_wait_us, job.imbalance_us)
    losses = {
        BUBBLE: step.pipeline_wait_us,
        # without waiting for late hosts, which the host wall counts
        WAITING: waited * (1 - job.lateness.share(LateBy.HOST)),
        OTHER_STREAMS: step.sync_us - step.turnaround_us,
        TURNAROUND: step.turnaround_us,
        NOT_IN_THE_TRACE: step.unattributed_us,
        ONE_WAY_COPIES: step.to_host_us + step.from_host_us - offloaded,
    }
    what, us = max(losses.items(), key=lambda item: item[1])
    return what, job.share(us)


def _cut_short(case: _Case) -> str | None:
    """Abstains on truncated traces. Profilers write device events last, so that without them the host looks slow."""
    cut = case.job.cut_short
    if not cut:
        return None
    others = f" and {len(cut) - 1} more traces" if len(cut) > 1 else ""
    return f"{cut[0]}{others}; events after that are missing, and no wall can be named without them"


def _low_coverage(case: _Case) -> str | None:
    known = case.job.classified
    if known >= THRESHOLDS["classified"]:
        return None
    return f"only {percent(known)} of device time is in known kernels; the largest unknown ones are listed"


def _unattributed(case: _Case) -> str | None:
    step = case.job.step
    share = case.job.share(step.unattributed_us) if step else 0.0
    if share <= THRESHOLDS["unattributed"]:
        return None
    return f"{percent(share)} of the step is idle for a cause that is not in the trace"


def _nothing_stands_out(case: _Case) -> str | None:
    if case.leader.share >= THRESHOLDS["share"]:
        return None
    return f"no wall has more to recover than {percent(case.leader.share)} of the step"


def _no_wall_is_larger(case: _Case) -> str | None:
    what, share = case.elsewhere
    late = case.job.late if what == WAITING else None
    # the late rank's delay and the others' waiting are one loss, counted twice
    its_own = late is not None and late.part is not None and late.part.split(":")[0] == case.leader.wall
    margin = THRESHOLDS["margin"] if its_own else -THRESHOLDS["margin"]
    if share <= max(case.leader.share + margin, THRESHOLDS["share"]):
        return None
    more = "more than any wall" if share > case.leader.share else f"nearly as much as {case.leader.wall}"
    why = f": {late}" if late is not None else ""
    return f"{what} takes {percent(share)} of the step, {more} ({percent(case.leader.share)}){why}"


def _may_be_waiting(case: _Case) -> str | None:
    """Returns why no wall is named if communication leads only by time that may be waiting for other ranks, or if most
    of it may be.

    In the trace of one rank, a peer that is late in every layer looks the same as a slow network.
    """
    step = case.job.step
    if step is None or case.leader.wall is not Wall.COMMUNICATION:
        return None
    leader = _saved_share(case.job, case.leader)
    maybe = leader * step.may_wait_share
    if leader - maybe >= max(leader - case.lead + THRESHOLDS["margin"], THRESHOLDS["share"], maybe):
        return None
    return (
        f"of communication's {percent(case.leader.share)} of the step "
        f"{percent(case.leader.share * step.may_wait_share)} may be waiting for other "
        "ranks: not all of their traces are here, or they could not be matched"
    )


def _another_stage(case: _Case) -> str | None:
    """Abstains if another, untraced pipeline stage may be as slow as the slowest one and have another leading wall."""
    job, leader = case.job, case.leader
    if leader.least_us is None:
        return None
    least = {f.wall: job.share(_certain_us(job, f)) for f in case.findings}
    wall = max(least, key=lambda one: least[one])
    if least[wall] <= least[leader.wall]:
        return None
    return (
        f"{leader.wall} leads on the slowest stage, with {percent(leader.share)} of the step; if an untraced stage is "
        f"as slow and built like the others, it recovers {percent(least[leader.wall])}, and {wall} "
        f"{percent(least[wall])}"
    )


def _certain_us(job: Job, finding: WallFinding) -> float:
    """Returns the part of a wall that can be recovered whatever the untraced ranks do."""
    us = finding.recoverable_us if finding.least_us is None else finding.least_us
    if finding.wall is not Wall.COMMUNICATION or job.step is None:
        return us
    return us * (1 - job.step.may_wait_share)


def _may_be_the_hosts(case: _Case) -> str | None:
    """Abstains if idle time after a launch, without a cause in the trace, could make the host the larger wall."""
    step, host = case.job.step, next((f for f in case.findings if f.wall is Wall.HOST), None)
    if step is None or host is None or case.leader is host:
        return None
    unclear = case.job.share(step.sync_us - step.turnaround_us)
    if unclear <= 0 or _saved_share(case.job, host) + unclear <= _saved_share(case.job, case.leader):
        return None
    return (
        f"{case.leader.wall} leads with {percent(case.leader.share)} of the step, but {percent(unclear)} of idle time "
        f"with work already launched may add to the host's {percent(host.share)}"
    )


def _too_close(case: _Case) -> str | None:
    if case.lead >= THRESHOLDS["margin"]:
        return None
    over = f": {percent(case.leader.share)}, and {case.next.wall} {percent(case.next.share)}" if case.next else ""
    return f"{case.leader.wall} leads by only {percent(max(0.0, case.lead))} of the step{over}"


ABSTENTIONS: tuple[Callable[[_Case], str | None], ...] = (
    _cut_short,
    _low_coverage,
    _unattributed,
    _no_wall_is_larger,
    _nothing_stands_out,
    _too_close,
    _may_be_waiting,
    _may_be_the_hosts,
    _another_stage,
)


BETWEEN_TWO = (_too_close, _may_be_the_hosts)


def _rivals(case: _Case, abstain: Callable[[_Case], str | None]) -> list[Wall]:
    """Returns the walls that might lead instead."""
    if abstain is _may_be_the_hosts:
        return [Wall.HOST]
    return [case.next.wall] if case.next else []


def conclude(job: Job, findings: Sequence[WallFinding]) -> Diagnosis:
    """Returns the verdict on findings, which are sorted by size, the largest first."""
    failure = job.outcome.failure
    memory = next((f for f in findings if f.wall is Wall.MEMORY), None)
    out_of_memory = failure is not None and failure.kind == "oom"
    if memory is not None and (
        out_of_memory or job.step is None
    ):  # if there are no step times, only failed allocations are evidence
        rest = [f for f in findings if f is not memory]
        return Diagnosis(wall=Wall.MEMORY, margin=1.0, because=memory.evidence[0], walls=[memory, *rest], quoted=[0])
    if not findings:
        return Diagnosis(wall=Wall.UNDETERMINED, margin=0.0, because=_no_traces(job), doubt="no_traces")
    bound = _bound_by_compute(job, findings)
    if bound is not None:
        return bound
    leader, *others = _ranked(job, findings)
    next_one = max(others, key=lambda one: _expected(job, one), default=None)
    lead = _saved_share(job, leader) - (_expected(job, next_one) if next_one else 0.0)
    margin = max(0.0, _saved_share(job, leader) - max((_saved_share(job, one) for one in others), default=0.0))
    case = _Case(
        job=job,
        leader=leader,
        next=next_one,
        elsewhere=lost_elsewhere(job, findings),
        lead=lead,
        findings=findings,
    )
    doubts = ((abstain, why) for abstain in ABSTENTIONS if (why := abstain(case)) is not None)
    for abstain, why in doubts:
        key = abstain.__name__.removeprefix("_")
        return Diagnosis(
            wall=Wall.UNDETERMINED,
            margin=margin,
            because=why,
            walls=list(findings),
            doubt=key,
            between=[*dict.fromkeys([leader.wall, *_rivals(case, abstain)])] if abstain in BETWEEN_TWO else [],
        )
    quoted = _quoted(leader)
    because = _reason(leader, others, quoted)
    return Diagnosis(wall=leader.wall, margin=margin, because=because, walls=list(findings), quoted=quoted)


def _saved_share(job: Job, finding: WallFinding) -> float:
    """Returns what removing the finding would save: its share of the step plus that of the bubble."""
    return finding.share + job.share(finding.bubble_us)


def _expected(job: Job, finding: WallFinding) -> float:
    """Returns what removing the finding is expected to save, a share of the step: half of possible waiting is
    subtracted."""
    maybe = job.step.may_wait_share if job.step and finding.wall is Wall.COMMUNICATION else 0.0
    return _saved_share(job, finding) * (1 - EXPECTED_WAITING * maybe)


def _ranked(job: Job, findings: Sequence[WallFinding]) -> list[WallFinding]:
    """Returns the findings, the wall to name first.

    Communication is placed after another wall of similar size (within the margin) if its expected transfer time is
    smaller than that wall.
    """
    ranked = sorted(findings, key=lambda one: -_saved_share(job, one))
    first, *others = ranked
    if first.wall is not Wall.COMMUNICATION or not others:
        return ranked
    as_large = _saved_share(job, others[0]) > _saved_share(job, first) - THRESHOLDS["margin"]
    more = _saved_share(job, others[0]) >= _expected(job, first) + THRESHOLDS["margin"]
    return [others[0], first, *others[1:]] if as_large and more else ranked


def _bound_by_compute(job: Job, findings: Sequence[WallFinding]) -> Diagnosis | None:
    """Returns compute as the wall of a step that is nearly all compute with nothing else to gain; else None.

    Also None if the attained rate of compute is known, which then decides. The margin is the share of compute minus the
    largest other loss.
    """
    compute = next((f for f in findings if f.wall is Wall.COMPUTE), None)
    if job.step is None or compute is None or job.outcome.attained is not None:
        return None
    others = [f for f in findings if f is not compute]
    computing = job.share(job.step.compute_us)
    largest = max([f.share for f in others] + [lost_elsewhere(job, findings)[1]])
    known = job.classified >= THRESHOLDS["classified"] and not job.cut_short
    if not known or computing < THRESHOLDS["compute_bound"] or largest >= THRESHOLDS["share"]:
        return None
    because = f"compute takes {percent(computing)} of the step and nothing else more than {percent(largest)}"
    return Diagnosis(wall=Wall.COMPUTE, margin=computing - largest, because=because, walls=[compute, *others])


def _quoted(leader: WallFinding) -> list[int]:
    """Returns the indices of the leader's evidence that the verdict quotes: the first line, and the one on its hidden
    part."""
    hidden = (at for at, line in enumerate(leader.evidence) if at and " is hidden" in line)
    return [0, *([at] if (at := next(hidden, None)) is not None else [])]


def _reason(leader: WallFinding, others: Sequence[WallFinding], quoted: Sequence[int]) -> str:
    """Returns the leader's figures as a sentence; adds that walls overlap if there is a second one."""
    shown = [f for f in others[:1] if f.share >= MIN_NAMED_SHARE]
    after = [f"; next is {f.wall} with {percent(f.share)} (walls overlap and do not add up)" for f in shown]
    return (
        f"{'; '.join(leader.evidence[at] for at in quoted)}. The {leader.wall} wall: at most "
        f"{percent(leader.share)} of the step{_faster(leader.speedup_bound)}{''.join(after)}"
    )


def _faster(bound: float | None) -> str:
    """Returns a bound on the speed-up in words: a percentage up to twice as fast, a factor beyond; "" without one."""
    if bound is None:
        return ""
    return f" (steps {percent(bound)} faster)" if bound < 1 else f" (steps {1 + bound:.1f}x as fast)"


def _no_traces(job: Job) -> str:
    failure = job.outcome.failure
    if failure is None and job.memory:
        return "a memory snapshot has no timing, and this one shows no failed or retried allocation"
    if failure is None:
        return "the run left no traces"
    where = f" in {failure.phase}" if failure.phase else ""
    return f"the run failed ({failure.kind}{where}) and left no traces: {failure.evidence}"
