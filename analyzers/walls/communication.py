"""Communication: time in which the device only moves data between ranks.

*What it is.* Communication that no compute hides: EP dispatch and combine, TP, CP, PP send-receive, DP gradient
reduction and parameter gathering.
*How it shows.* On the device's timeline, communication minus compute, by kind, on the slowest rank.
*What it costs.* EP all-to-all takes 20–60 % of a step before optimisation, 40–60 % across nodes.
*When it does not apply.* Waiting inside a collective for a rank that comes late is that rank's time, not the
network's; with the traces of several ranks it is told apart and left out.
*Source.* arXiv 2603.07685 §4.2.
"""

from __future__ import annotations

from analyzers.diagnosis import Wall, WallFinding
from analyzers.job import Job
from analyzers.rank_step import RankStep
from analyzers.wording import KIND_NAMES, ms, percent

WALL = Wall.COMMUNICATION
SAID_SHARE = 0.005  # kinds that take less than this part of the step are not worth a line


def find(job: Job) -> WallFinding | None:
    """R is the exposed communication that is no waiting for a slower rank."""
    step = job.step
    if step is None:
        return None
    parts = {
        kind: own
        for kind, exposed in step.exposed_by_kind.items()
        if (own := exposed - step.waiting_by_kind.get(kind, 0.0)) > 0
    }
    recoverable = sum(parts.values())
    return WallFinding(
        wall=WALL,
        recoverable_us=recoverable,
        share=job.share(recoverable),
        evidence=[*_by_kind(job, step, parts), *_late_ranks(job, step)],
        parts=parts,
    )


def _by_kind(job: Job, step: RankStep, parts: dict[str, float]) -> list[str]:
    lines = []
    for kind, ran in sorted(step.communication_by_kind.items(), key=lambda item: -item[1]):
        exposed = parts.get(kind, 0.0)
        if job.share(exposed) >= SAID_SHARE:
            lines.append(
                f"{KIND_NAMES[kind]} is exposed for {job.of_step(exposed)}{_where(job)}: "
                f"hiding it can give back {percent(job.share(exposed))} at most"
            )
        elif job.share(ran) >= SAID_SHARE and kind not in step.waiting_by_kind:
            lines.append(f"{KIND_NAMES[kind]} is hidden: {ms(ran - exposed)} of its {ms(ran)} ms run under compute")
    if job.share(parts.get("pp", 0.0)) >= SAID_SHARE:
        lines.append(
            "PP send-recv includes waiting for other stages (the bubble): one rank's trace cannot tell them apart"
        )
    return lines or ["no communication is exposed"]


def _late_ranks(job: Job, step: RankStep) -> list[str]:
    """Ranks that the others wait for; the slowest is the one that waits least."""
    waits = {rank: one.waiting_us for rank, one in job.by_rank.items()}
    if len(waits) < 2 or job.slowest is None:
        return []
    rank, longest = max(waits.items(), key=lambda item: item[1])
    if rank == job.slowest or job.share(longest) < SAID_SHARE:
        return []
    return [
        f"rank {rank} waits {job.of_step(longest)} in collectives for later ranks, "
        f"rank {job.slowest} only {ms(waits[job.slowest])} ms: that is imbalance, not counted here"
    ]


def _where(job: Job) -> str:
    return f" on rank {job.slowest}" if len(job.by_rank) > 1 and job.slowest is not None else ""
