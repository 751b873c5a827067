"""Communication: the device only moves data between ranks.

*What it is.* Communication not hidden under compute: EP dispatch and combine, TP, CP, PP send-receive, DP gradient
reduction and parameter gathering.
*How it shows.* On the device's timeline, communication minus compute, by kind, on the slowest rank.
*What it costs.* EP all-to-all takes 20–60 % of a step before optimisation, 40–60 % across nodes.
*When it does not apply.* Waiting inside a collective for a rank that comes late is that rank's time, not the
network's: with traces of several ranks it is separated and left out; with one rank, the shortest collective of the
same kind bounds the transfer, and the rest is reported as possible waiting. What a pipeline receive takes beyond the
shortest of its kind is the bubble.
*Source.* arXiv 2603.07685 §4.2.
"""

from __future__ import annotations

from analyzers.diagnosis import Wall, WallFinding
from analyzers.kernel_classes import PIPELINE
from analyzers.one_rank.rank_step import RankStep
from analyzers.ranks.job import Job
from analyzers.ranks.stragglers import COMPUTE, Place
from analyzers.wall_kind import WallKind
from analyzers.wording import KIND_NAMES, ms, percent

KIND = WallKind(
    wall=Wall.COMMUNICATION,
    order=3,
    loses="communication is exposed",
    column="exposed communication",
    style="black on yellow",
    segments=("ep_dispatch", "ep_combine", "ep_notify", "all_to_all", "tp", "cp", "pp", "dp", "other"),
)
MIN_SHOWN_SHARE = 0.005  # share of the step: kinds that take less get no line
RANKS_NAMED = 8


def find(job: Job) -> WallFinding | None:
    """Finds R: the exposed communication that is not waiting for a slower rank."""
    step = job.step
    if step is None:
        return None
    parts = _parts(step)
    exposed = sum(parts.values())
    alone, gained = _recoverable(step), job.gained_us(_recoverable)
    back = gained / exposed if exposed > 0 else 1.0
    return WallFinding(
        wall=KIND.wall,
        recoverable_us=gained,
        share=job.share(gained),
        evidence=[
            *_by_kind(job, step, parts, back),
            *_limits(job, step, exposed, alone),
            *job.until_another_is_slowest(alone, gained),
            *_not_counted(job, step),
            *_late_ranks(job, step),
        ],
        parts={kind: back * us for kind, us in parts.items()},
        bubble_us=step.bubble_with_us(gained),
        least_us=job.least_us(_recoverable),
    )


def _parts(step: RankStep) -> dict[str, float]:
    """Returns exposed communication by kind, without waiting for a slower rank."""
    return {
        kind: own
        for kind, exposed in step.exposed_by_kind.items()
        if (own := exposed - step.waiting_by_kind.get(kind, 0.0)) > 0
    }


def _recoverable(step: RankStep) -> float:
    return min(1.0, step.recovered_share(KIND.wall, sum(step.exposed_by_kind.values()))) * sum(_parts(step).values())


def _limits(job: Job, step: RankStep, exposed: float, alone: float) -> list[str]:
    """Returns lines on why a rank gains less than the time of its exposed communication; alone: the µs that it
    gains."""
    lines = []
    if job.share(exposed - alone) >= MIN_SHOWN_SHARE:
        lines.append(
            f"the host is not far enough ahead: without the {ms(exposed)} ms the step would be shorter by only "
            f"{ms(alone)} ms ({percent(job.share(alone))}), the rest would become launch wait"
        )
    hiding = sum(step.communication_by_kind.values()) - sum(step.exposed_by_kind.values())
    room = step.compute_us - hiding
    if exposed > room:
        lines.append(
            f"only {ms(max(0.0, room))} ms of compute have no communication under them yet: the rest cannot be hidden"
        )
    return lines


def _by_kind(job: Job, step: RankStep, parts: dict[str, float], back: float) -> list[str]:
    lines = []
    for kind, ran in sorted(step.communication_by_kind.items(), key=lambda item: -item[1]):
        exposed = parts.get(kind, 0.0)
        if job.share(exposed) >= MIN_SHOWN_SHARE:
            lines.append(
                f"{KIND_NAMES[kind]} is exposed for {job.of_step(exposed)}{_where(job)}: "
                f"hiding it recovers at most {percent(job.share(back * exposed))}"
            )
        elif job.share(ran) >= MIN_SHOWN_SHARE and kind not in step.waiting_by_kind:
            lines.append(f"{KIND_NAMES[kind]} is hidden: {ms(ran - exposed)} of its {ms(ran)} ms run under compute")
    return lines or ["no communication is exposed"]


def _not_counted(job: Job, step: RankStep) -> list[str]:
    """Returns lines on exposed communication that is not, or possibly not, transfer."""
    held = step.waiting_by_kind.get(PIPELINE, 0.0)
    unsure = {kind: us for kind, us in step.may_wait_by_kind.items() if job.share(us) >= MIN_SHOWN_SHARE}
    lines = []
    if job.share(held) >= MIN_SHOWN_SHARE:
        lines.append(
            f"PP send/recv occupies the device for {job.of_step(held)} beyond its transfers, while a pipeline peer "
            "computes: pipeline bubble, not counted here"
        )
    for kind, us in sorted(unsure.items(), key=lambda item: -item[1]):
        lines.append(
            f"{ms(us)} ms of {KIND_NAMES[kind]} may be waiting for other stages (the peer's trace is needed)"
            if kind == PIPELINE
            else f"{ms(us)} ms of {KIND_NAMES[kind]} exceed the shortest collectives of the same kind and may be "
            "waiting for other ranks (their traces are needed)"
        )
    return lines


def _late_ranks(job: Job, step: RankStep) -> list[str]:
    """Returns lines on ranks that the others wait for, and on how much an even load would gain."""
    lines = []
    if job.late is not None:
        lines.append(str(job.late))
    slower_device = job.late is not None and job.late.part == COMPUTE
    if job.share(job.even_experts_us) >= MIN_SHOWN_SHARE and not slower_device:
        lines.append(
            f"the busiest rank's experts compute {job.expert_load.ratio:.1f}x what the mean rank's do (load "
            f"imbalance): balancing them recovers at most {percent(job.share(job.even_experts_us))}"
        )
    waits = {
        str(Place(rank=one.rank, device=one.device)): one.waiting_us - one.waiting_by_kind.get(PIPELINE, 0.0)
        for one in job.ranks
    }
    slowest = str(job.slowest_place)
    longest_waiter, longest = max(waits.items(), key=lambda item: item[1], default=("", 0.0))
    if longest_waiter != slowest and slowest in waits and job.share(longest) >= MIN_SHOWN_SHARE:
        lines.append(
            f"{longest_waiter} waits {job.of_step(longest)} in collectives for late ranks, "
            f"{slowest} only {ms(waits[slowest])} ms: imbalance, not counted here"
        )
    if job.unaligned and step.exposed_by_kind:
        lines.append(
            f"no collective of {', '.join(job.unaligned[:RANKS_NAMED])}"
            f"{' and more' if len(job.unaligned) > RANKS_NAMED else ''} could be matched with the first rank's: "
            "their clocks are not aligned"
        )
    if len(job.ranks) > 1 and job.world_size is not None and job.world_size > len(job.ranks):
        lines.append(f"{len(job.ranks)} of {job.world_size} ranks are traced: the slowest may be one of the others")
    return lines


def _where(job: Job) -> str:
    return f" on {job.slowest_place}" if len(job.ranks) > 1 else ""
