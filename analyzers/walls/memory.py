"""Memory: time lost to too little memory, or a run that does not fit.

*What it is.* Recompute in backward, exposed copies of offloaded tensors,
allocator calls to the driver; and out of memory itself.
*How it shows.* Time inside `recompute` ranges or checkpoint functions; exposed copies both ways between device and
host; cudaMalloc and cudaFree while the device is idle; the peak of the hottest rank against its limit.
*What it costs.* Full recompute about a third of compute, and it repeats the EP all-to-all; fine-grained recompute
below 5 %; activation offload 1.6–2 %.
*When it does not apply.* A smaller micro batch or more model parallelism than needed does not show in a trace: only
another run can show it.
*Source.* arXiv 2603.07685 §4.1.
"""

from __future__ import annotations

from analyzers.diagnosis import Wall, WallFinding
from analyzers.kernel_classes import RECOMPUTE
from analyzers.memory.evidence import memory_evidence
from analyzers.one_rank.rank_step import OFFLOAD, RankStep
from analyzers.outcome import RunOutcome
from analyzers.ranks.job import Job
from analyzers.wall_kind import WallKind
from analyzers.wording import ms, percent

KIND = WallKind(
    wall=Wall.MEMORY,
    order=2,
    loses="memory costs time (recompute, offload, retries)",
    column="recompute, copies",
    style="white on magenta",
    segments=("recompute", "copy"),
)
OUT_OF_MEMORY = "oom"
MIN_SHOWN_SHARE = 0.005


def find(job: Job) -> WallFinding | None:
    """Finds R: recompute (with the host's part of it), exposed copies of offload, and allocator stalls.

    A run that ended out of memory has no step time: its R is 0 and its share 1.
    """
    if job.outcome.failure is not None and job.outcome.failure.kind == OUT_OF_MEMORY:
        return WallFinding(wall=KIND.wall, recoverable_us=0.0, share=1.0, evidence=_failure(job.outcome))
    step = job.step
    if step is None:
        return _without_time(job)
    parts = _parts(step)
    alone = sum(parts.values())
    gained = job.gained_us(lambda one: sum(_parts(one).values()))
    return WallFinding(
        wall=KIND.wall,
        recoverable_us=gained,
        share=job.share(gained),
        evidence=[
            *_evidence(job, step, parts),
            *job.until_another_is_slowest(alone, gained),
            *_peak(job.outcome),
            *memory_evidence(job.memory),
        ],
        parts={name: gained / alone * us for name, us in parts.items()},
        bubble_us=step.bubble_with_us(gained),
        least_us=job.least_us(lambda one: sum(_parts(one).values())),
    )


def _without_time(job: Job) -> WallFinding | None:
    """Returns the finding from snapshots alone: memory is the wall if allocations failed or were retried; else None."""
    if not any(use.out_of_memory or use.allocator_retries for _, use in job.memory):
        return None
    return WallFinding(wall=KIND.wall, recoverable_us=0.0, share=1.0, evidence=memory_evidence(job.memory))


def _parts(step: RankStep) -> dict[str, float]:
    copies = step.to_host_us + step.from_host_us if step.offloads else 0.0
    counted = {
        "recompute": step.recompute_us + step.recompute_host_us,
        "offload_copies": copies,
        "allocator": step.allocator_us,
    }
    back = step.recovered_share(OFFLOAD if copies > 0 else KIND.wall, sum(counted.values()))
    return {name: back * us for name, us in counted.items() if back * us > 0}


def _evidence(job: Job, step: RankStep, parts: dict[str, float]) -> list[str]:
    lines = []
    if (us := parts.get("recompute", 0.0)) > 0:
        lines.append(f"recompute takes {job.of_step(us)}{_outside_compute(job, step)}")
    if (us := parts.get("offload_copies", 0.0)) > 0:
        lines.append(f"copies between device and host, both ways, are exposed for {job.of_step(us)}")
    elif job.share(step.to_host_us + step.from_host_us) >= MIN_SHOWN_SHARE:
        us = step.to_host_us + step.from_host_us
        lines.append(f"one-way copies take {job.of_step(us)}: input or weights, not offload")
    if (us := parts.get("allocator", 0.0)) > 0 and job.share(us) >= MIN_SHOWN_SHARE:
        lines.append(f"the device is idle during cudaMalloc and cudaFree for {job.of_step(us)}")
    if job.share(step.driver_us) >= MIN_SHOWN_SHARE:
        often = f"{step.driver_calls:.3g} cudaMalloc and cudaFree{' per step' if job.steps else ''}"
        lines.append(f"{often} take {ms(step.driver_us)} ms")
    return lines or ["no recompute, no offload and no allocator stall shows in the trace"]


def _outside_compute(job: Job, step: RankStep) -> str:
    """Returns the parts of recompute that `compute_by_class` does not include, in words."""
    repeated = step.recompute_us - step.compute_by_class.get(RECOMPUTE, 0.0)
    counted = {"in communication that it repeats": repeated, "on the host": step.recompute_host_us}
    parts = [f"{ms(us)} ms of it {where}" for where, us in counted.items() if job.share(us) >= MIN_SHOWN_SHARE]
    return "".join(f", {each}" for each in parts)


def _peak(outcome: RunOutcome) -> list[str]:
    if outcome.hottest is None:
        return []
    rank, peak = outcome.hottest
    if outcome.limit_gib is None:
        return [f"rank {rank} peaks at {peak:.2f} GiB"]
    return [f"rank {rank} peaks at {peak:.2f} of {outcome.limit_gib:.2f} GiB ({percent(peak / outcome.limit_gib)})"]


def _failure(outcome: RunOutcome) -> list[str]:
    failure = outcome.failure
    if failure is None:
        return []
    who = f"rank {failure.rank}" if failure.rank is not None else "a rank"
    when = f" in {failure.phase}" if failure.phase else ""
    evidence = f": {failure.evidence}" if failure.evidence else ""
    return [f"{who} ran out of memory{when}{evidence}", *_peak(outcome)]
