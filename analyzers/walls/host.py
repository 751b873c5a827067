"""Host: the device is idle because nothing had been launched yet.

*What it is.* Python, the rate and latency of launches, garbage collection, synchronising calls, data loading, loading
and compiling kernels: the host cannot feed the device.
*How it shows.* The launch of the work that ends a gap had not returned when the gap started: up to its return, plus the
few microseconds to the device, the host was late. The threads that launch work show what it did then.
On CPU ranks: time of the compute threads outside operators.
*What it costs.* A launch takes several microseconds, and MoE layers launch many small kernels; binding CPUs gave
+10 %, partial CUDA graphs +10 % on DeepSeek-V3.
*When it does not apply.* Bubbles, waiting for another stream, or for a rank that is late for another reason than its
host, gaps inside CUDA graphs, delays by the profiler, the gap between queued kernels; cudaMalloc and cudaFree belong to
the memory wall.
*Source.* arXiv 2603.07685 §4.3.6; DeepSeek-V3 GB200 guide of Megatron-LM.
"""

from __future__ import annotations

from analyzers.diagnosis import Wall, WallFinding
from analyzers.names.host_activities import ALLOCATOR
from analyzers.one_rank.rank_step import RankStep
from analyzers.ranks.job import Job
from analyzers.ranks.late_ranks import LateBy
from analyzers.wall_kind import WallKind
from analyzers.wording import ACTIVITY_NAMES, ms, percent, short

KIND = WallKind(
    wall=Wall.HOST,
    order=4,
    loses="the device waits for the host",
    column="host",
    style="black on cyan",
    segments=("host",),
)
MIN_SHOWN_SHARE = 0.01
RANKS_NAMED = 4


def find(job: Job) -> WallFinding | None:
    """Finds R: idle time that the host caused, by its activity, and waiting for ranks whose hosts are late. Returns
    None without a step.

    The idle time counts as far as the other ranks let the step get shorter. The allocator's part belongs to the memory
    wall.
    """
    step = job.step
    if step is None:
        return None
    alone, gained = own_us(step), job.gained_us(own_us)
    back = gained / alone if alone > 0 else 1.0
    parts = {what: back * us for what, us in step.host_by_activity.items() if what != ALLOCATOR}
    waited = step.waiting_for_hosts
    least, waited_us = job.least_us(own_us), sum(waited.values())
    parts |= {what: parts.get(what, 0.0) + us for what, us in waited.items()}
    return WallFinding(
        wall=KIND.wall,
        recoverable_us=gained + waited_us,
        share=job.share(gained + waited_us),
        evidence=[
            *_evidence(job, step),
            *_late_hosts(job, waited_us),
            *job.until_another_is_slowest(alone, gained),
        ],
        parts=dict(sorted(parts.items(), key=lambda item: -item[1])),
        bubble_us=step.bubble_with_us(min(gained, step.host_in_passes_us)),
        least_us=None if least is None else least + waited_us,
    )


def _late_hosts(job: Job, waited_us: float) -> list[str]:
    """Returns lines on ranks that are late because of their hosts; waited_us: how long this rank waits for them."""
    late = [str(one) for one in job.lateness.late_by(LateBy.HOST)[:RANKS_NAMED] if one.cause is LateBy.HOST]
    if job.share(waited_us) < MIN_SHOWN_SHARE:
        return late
    return [f"{job.of_step(waited_us)} more are waiting for ranks whose hosts are late", *late]


def own_us(step: RankStep) -> float:
    """Returns the time for which the host of one rank delays its own device."""
    return step.host_us - step.host_by_activity.get(ALLOCATOR, 0.0)


def _evidence(job: Job, step: RankStep) -> list[str]:
    if step.host_us <= 0:
        return ["the device never waits for the host"]
    what = "no operator runs" if job.on_cpu else "the device waits for work that the host had not launched yet"
    lines = [f"{what} for {job.of_step(step.host_us)}{_mostly(step)}"]
    named = {_mostly_in(step)} - {ALLOCATOR}
    for activity, us in sorted(step.host_by_activity.items(), key=lambda item: -item[1]):
        if job.share(us) >= MIN_SHOWN_SHARE and activity not in named:
            whose = ", counted as memory" if activity == ALLOCATOR else ""
            what = f"{ACTIVITY_NAMES[activity]}{whose}"
            lines.append(f"of that {ms(us)} ms ({percent(job.share(us))} of the step): {what}")
    if job.share(step.launch_rate_us) >= MIN_SHOWN_SHARE:
        lines.append(_launch_rate(job, step))
    if job.share(step.after_sync_us) >= MIN_SHOWN_SHARE:
        lines.append(
            f"{ms(step.after_sync_us)} ms of it ({percent(job.share(step.after_sync_us))} of the step) follow a "
            "synchronizing call: the host launches again only after the device has drained"
        )
    return [*lines, *_no_wall(job, step)]


def _mostly(step: RankStep) -> str:
    """Returns words for the activity that takes more than half of the host's time; '' if there is none."""
    if step.launch_rate_us > step.host_us / 2:
        often = short(step.launch_interval_us)
        return f", mostly launching one after the other, every {often} ({ms(step.launch_rate_us)} ms)"
    activity = _mostly_in(step)
    return f", mostly {ACTIVITY_NAMES[activity]} ({ms(step.host_by_activity[activity])} ms)" if activity else ""


def _mostly_in(step: RankStep) -> str | None:
    """Returns the activity that takes more than half of the host's time; None if there is none.

    The first line names it, so that later lines need not.
    """
    if step.launch_rate_us > step.host_us / 2:
        return None
    activity, us = max(step.host_by_activity.items(), key=lambda item: item[1], default=("", 0.0))
    return activity if us > step.host_us / 2 else None


def _launch_rate(job: Job, step: RankStep) -> str:
    often = (
        f"{step.launches:,.0f} launches{' per step' if job.steps else ''}, one every {short(step.launch_interval_us)}"
    )
    return (
        f"{often}, of kernels that run {short(step.kernel_us)} (medians): for {job.of_step(step.launch_rate_us)} the "
        "device waits only for the next launch; CUDA graphs or fewer, larger kernels recover at most that"
    )


def _no_wall(job: Job, step: RankStep) -> list[str]:
    """Returns lines on idle time with other causes than the host."""
    others = {
        "the pipeline's bubble (a receive is pending)": step.bubble_us,
        "work that was launched but waits for another stream, a copy or an event": step.sync_us - step.turnaround_us,
        "the gap between queued kernels": step.turnaround_us,
    }
    return [
        f"not host time: {ms(us)} ms idle for {what}" for what, us in others.items() if job.share(us) >= MIN_SHOWN_SHARE
    ]
