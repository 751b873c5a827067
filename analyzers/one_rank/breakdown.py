"""Divides each step of one rank exactly into compute, exposed communication, exposed copies and idle time.

Compute comes first, then communication not under compute, then copies under neither; idle is the remainder, so the
parts add up by construction, in any window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from analyzers.diagnosis import (
    WHOLE,
    CommunicationTime,
    IdleByCause,
    MemoryUse,
    Partition,
    RangeTime,
    Repeated,
    Stretch,
    TraceReport,
)
from analyzers.intervals import EMPTY, Intervals, intersect, merge, subtract
from analyzers.memory.peaks import driver_calls, memory_use
from analyzers.names import kernels
from analyzers.names.host_activities import ALLOCATOR
from analyzers.one_rank import cpu, gpu
from analyzers.one_rank.gaps import Idle, idle
from analyzers.one_rank.host import ISSUING, Host, issuing_lanes
from analyzers.one_rank.launches import Launches, launches
from analyzers.one_rank.pace import Pace, pace
from analyzers.one_rank.projection import project
from analyzers.one_rank.replay import Replay, polls, replay
from analyzers.one_rank.work import Work
from analyzers.repeats import Repeats
from analyzers.steps import Step, bare, repeated, steps
from analyzers.stretches import bounds, cut
from analyzers.timeline import Spans, Timeline
from analyzers.wording import ms, recorded

EP_NOTIFY = "ep_notify"  # kernels that send token counts, which the host reads before it launches the dispatch
NO_STEPS = "no step markers (ProfilerStep#n, step): the whole trace counts as one step"
PROFILER_DELAYS = "the profiler delayed the host"
UNSEEN_WORK = "launched kernels or graphs are missing from the trace (nsys: --cuda-graph-trace=node)"
WORTH_A_WARNING = 0.01  # share of the span: less unattributed time gets no warning


@dataclass(frozen=True, kw_only=True, eq=False)
class Breakdown:
    """One rank's sets of time, its windows, and their partitions: steps[k] is the partition of windows[k]."""

    timeline: Timeline
    work: Work
    idle: Idle
    host: Mapping[str, Intervals]  # host idle by what the host was doing
    recompute_issue: Intervals  # the host issuing recomputed forward work
    allocator: Intervals  # the host in cudaMalloc or cudaFree while the device was idle
    allocating: Intervals  # the host in cudaMalloc or cudaFree, whether or not the device was idle
    pace: Pace
    replay: Replay | None  # None on CPUs, where nothing is launched ahead, and where the host's waits are not known
    after_sync: Intervals  # host idle time without a stall of its own, in gaps that started in a synchronising call
    ranges: tuple[RangeTime, ...]
    memory: MemoryUse | None
    driver_calls: Spans  # calls that allocate or free device memory in the driver
    windows: tuple[Step, ...]
    taken: bool  # the windows are ranges that repeat: nothing marks them as steps
    stretch: Stretch
    span: Partition
    steps: tuple[Partition, ...]

    def measure(self, part: Intervals) -> list[float]:
        """Returns the time of a set in each step, µs; in the whole span if no step is marked."""
        at = self.windows or (Step(name="", start_us=self.span.start_us, end_us=self.span.end_us),)
        start = np.array([s.start_us for s in at])
        end = np.array([s.end_us for s in at])
        return [float(us) for us in self.timeline.repeats.within(part, start, end)]

    def _doubts(self) -> list[str]:
        """Returns warnings of idle time that is unattributed for a reason that the trace shows."""
        total_us = self.timeline.repeats.total_us
        idle_us = {PROFILER_DELAYS: total_us(self.idle.profiler), UNSEEN_WORK: total_us(self.idle.unseen)}
        least = WORTH_A_WARNING * self.span.duration_us
        return [f"{ms(us)} ms of idle time are unattributed: {why}" for why, us in idle_us.items() if us > least]

    def report(self) -> TraceReport:
        index, repeats = self.timeline.device_index, self.timeline.repeats
        return TraceReport(
            path=self.timeline.path,
            format=self.timeline.format,
            rank=self.timeline.rank,
            devices=[] if index is None else [index],
            span=self.span,
            steps=list(self.steps),
            coverage=self.work.coverage,
            kernels=list(self.work.kernels),
            ranges=list(self.ranges),
            memory=self.memory,
            warnings=[
                *recorded(self.timeline.microbatches, self.timeline.microbatches_traced, repeats.times.tolist()),
                *self.timeline.warnings,
                *self._doubts(),
                *self._marks(),
            ],
            microbatches=self.timeline.microbatches,
            microbatches_traced=self.timeline.microbatches_traced,
            repeated=[Repeated(start_us=s, end_us=e, times=t) for s, e, t in repeats.windows()],
            stretch=self.stretch,
            steps_marked=not self.taken,
            simulated=self.timeline.simulated,
            compute_capability=self.timeline.compute_capability,
        )

    def _marks(self) -> list[str]:
        """Returns warnings about steps that were not found by a marker."""
        if self.taken:
            name = bare(self.windows[0].name)
            return [f"no step markers: the {len(self.windows)} ranges {name!r} are used as steps (--step-marker)"]
        return [] if self.windows else [NO_STEPS]


def break_down(timeline: Timeline, stretch: Stretch = WHOLE) -> Breakdown:
    """Divides the trace, or a stretch of it, and every step in it.

    Raises: TraceError: the trace does not contain the stretch.
    """
    timeline = cut(timeline, stretch)
    windows = _windows(timeline, stretch)
    on_cpu = timeline.device_index is None
    launch = launches(timeline)
    work = cpu.work(timeline) if on_cpu else gpu.work(timeline, launch)
    span = _span(work, windows)
    taken = () if windows else tuple(repeated(timeline, since=span.start_us, until=span.end_us))
    windows = windows or taken
    start = min(w.start_us for w in (span, *windows))
    end = max(w.end_us for w in (span, *windows))
    if on_cpu:
        host = Host(timeline=timeline, lanes=cpu.computing_lanes(timeline))
        causes = cpu.idle(timeline, work, start_us=start, end_us=end)
    else:
        host = Host(timeline=timeline, lanes=issuing_lanes(timeline, launch), launch=launch)
        causes = idle(timeline, work, launch, host, start_us=start, end_us=end)
    by_activity = host.share_out(causes.host)
    allocating = host.doing(ALLOCATOR)
    launching = pace(timeline, launch)
    driver = driver_calls(timeline.calls)
    issuing = merge(by_activity.get(what, EMPTY) for what in ISSUING)
    launch_rate = intersect(issuing, launching.usual)
    divided = partial(partition, work, causes, by_activity, launch_rate, timeline.repeats)
    return Breakdown(
        timeline=timeline,
        work=work,
        idle=causes,
        host=by_activity,
        recompute_issue=work.recompute_issue,
        allocator=subtract(allocating, work.busy),
        allocating=allocating,
        pace=launching,
        replay=None if on_cpu else _replay(timeline, launch, causes, host, windows or (span,)),
        after_sync=intersect(causes.after_sync, issuing),
        ranges=tuple(project(timeline, launch)),
        memory=memory_use(timeline, windows, driver),
        driver_calls=driver,
        windows=windows,
        taken=bool(taken),
        stretch=stretch,
        span=divided(span),
        steps=tuple(map(divided, windows)),
    )


def _windows(timeline: Timeline, stretch: Stretch) -> tuple[Step, ...]:
    """Returns the marked steps, for a stretch those entirely inside it; if none is and the user named a range, the
    ranges of that name."""
    found = steps(timeline, stretch.step_marker)
    if stretch.whole:
        return tuple(found)
    start, end = bounds(timeline, stretch)
    inside = [step for step in found if step.start_us >= start and step.end_us <= end]
    return tuple(inside or (steps(timeline, stretch.range) if stretch.range is not None else []))


def _replay(timeline: Timeline, launch: Launches, causes: Idle, host: Host, windows: Sequence[Step]) -> Replay | None:
    """Returns the replay; None if the trace does not show when the host waited for the device."""
    waits = host.waits()
    if waits is None:
        return None
    events = timeline.device.spans
    notifies = events.where(lambda name: kernels.kernel(name).kind == EP_NOTIFY)
    polled = polls(events, launch, notifies)
    return replay(
        events, launch, late=causes.host, waits=waits, polled=polled, windows=windows, repeats=timeline.repeats
    )


def _span(work: Work, windows: tuple[Step, ...]) -> Step:
    """Returns the time from the first device event's start to the last one's end; without any, that of the windows."""
    busy = work.busy
    if not len(busy):
        if not windows:
            return Step(name="", start_us=0.0, end_us=0.0)
        return Step(name="", start_us=windows[0].start_us, end_us=windows[-1].end_us)
    return Step(name="", start_us=float(busy.start[0]), end_us=float(busy.end[-1]))


def partition(
    work: Work, causes: Idle, host: Mapping[str, Intervals], launch_rate: Intervals, repeats: Repeats, window: Step
) -> Partition:
    """Divides one window: duration = compute + exposed communication + exposed copies + idle.

    host: the idle time that the host caused, by its activity; launch_rate: the part of it that faster launches would
    save.
    """
    start, end = np.array(window.start_us), np.array(window.end_us)

    def us(part: Intervals) -> float:
        return float(repeats.within(part, start, end))

    length = window.end_us - window.start_us
    duration = float(repeats.lasting(start, end))
    compute = us(work.compute)
    exposed = {kind: us(when) for kind, when in work.exposed_by_kind.items()}
    exposed_communication = us(work.exposed_communication)
    exposed_copy = us(work.exposed_copies)
    busy = compute + exposed_communication + exposed_copy
    idle_us = max(0.0, duration - busy)
    busy_by_kind = {kind: us(when) for kind, when in work.communication_by_kind.items()}
    return Partition(
        name=window.name,
        start_us=window.start_us,
        duration_us=duration,
        busy_us=busy,
        compute_us=compute,
        communication_us=us(work.communication),
        exposed_communication_us=exposed_communication,
        communication_by_kind={
            kind: CommunicationTime(busy_us=ran, exposed_us=exposed.get(kind, 0.0))
            for kind, ran in busy_by_kind.items()
            if ran > 0
        },
        copy_us=us(work.copies),
        exposed_copy_us=exposed_copy,
        idle_us=idle_us,
        idle_by_cause=_by_cause(us(causes.host), us(causes.sync), us(causes.bubble), idle_us),
        graph_us=us(work.graphs),
        compute_by_class={name: t for name, when in work.compute_by_class.items() if (t := us(when)) > 0},
        recompute_us=us(work.recomputing),
        gemm_by_precision={name: t for name, when in work.gemm_by_precision.items() if (t := us(when)) > 0},
        host_by_activity={what: t for what, when in host.items() if (t := us(when)) > 0},
        turnaround_us=us(causes.turnaround),
        launch_rate_us=us(launch_rate),
        recorded_us=length if duration > length else None,
    )


def _by_cause(host: float, sync: float, bubble: float, idle_us: float) -> IdleByCause:
    return IdleByCause(
        host_us=host,
        bubble_us=bubble,
        sync_us=sync,
        unattributed_us=max(0.0, idle_us - host - sync - bubble),
    )
