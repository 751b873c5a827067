"""Attributes each idle gap of a device to a cause: host, sync, bubble or unattributed.

In a gap no stream of the device runs anything. Its cause follows from the work that ends it. Until the launch of that
work had returned (plus the few microseconds to the device) the host was late; after that the work was queued and waited
for another stream, a copy or an event. Some gaps are unattributed: those ended by work of a launch that had already
started (kernels inside a CUDA graph) or without a recorded launch, those in which the device may have run work that the
trace does not contain, and delays by the profiler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.intervals import EMPTY, Floats, Intervals, intersect, merge, subtract, union, window
from analyzers.names.host_activities import PROFILER, SYNCHRONISING
from analyzers.one_rank import communication
from analyzers.one_rank.host import Host
from analyzers.one_rank.launches import Launches, unseen
from analyzers.one_rank.work import Work
from analyzers.timeline import Spans, Timeline

# time from the return of a launch to the start of its kernel on an idle device: at most 8 us for 99 of 100 in the real
# traces recorded on Linux, 2 us for half of them
LAUNCH_LATENCY_US = 10.0
# a device takes 1 to 3 us from one kernel to the next one in its queue: nearly all waits of queued work in
# the real traces are as short (94 to 100 % of that time in 15 of 19), what waits for something waits longer
TURNAROUND_US = 5.0
GLOO_RECEIVE = "gloo:recv"


@dataclass(frozen=True, kw_only=True, eq=False)
class Idle:
    """Idle time by cause: `host`, `sync` and `bubble` are disjoint; idle time in none of the three is unattributed."""

    host: Intervals = EMPTY
    sync: Intervals = EMPTY
    bubble: Intervals = EMPTY
    turnaround: Intervals = EMPTY  # the part of `sync` too short to be a wait: from one queued kernel to the next
    after_sync: Intervals = EMPTY  # the part of `host` in gaps that started while the host was in a synchronising call
    profiler: Intervals = EMPTY  # unattributed: the host was late because of the profiler
    unseen: Intervals = EMPTY  # unattributed: work may have run that the trace does not hold


def idle(
    timeline: Timeline,
    work: Work,
    launch: Launches,
    host: Host,
    *,
    start_us: float,
    end_us: float,
) -> Idle:
    """Returns the device's idle time within [start_us, end_us] by cause."""
    gaps = subtract(window(start_us, end_us), work.busy)
    blocked = host.doing(SYNCHRONISING)
    bubble = intersect(gaps, merge((_exchanges(timeline.ranges, blocked), waits_for_receives(timeline.ranges, gaps))))
    ready = _ready(timeline, launch, gaps)
    # nothing is launched until the end of the window: the host caused the gap, if its launches are recorded
    never = np.isposinf(ready)
    nothing_came = never & (gaps.end >= end_us) & launch.known.any()
    late = (ready > gaps.start) & (~never | nothing_came)
    until = np.where(late, np.minimum(ready + LAUNCH_LATENCY_US, gaps.end), gaps.start)
    recorded_until = np.minimum(gaps.end, _unseen_from(timeline, launch, gaps, ready))
    waited = union(until[~never], recorded_until[~never])
    short = waited.end - waited.start <= TURNAROUND_US
    host_late = union(gaps.start, np.minimum(until, recorded_until))
    late_host = subtract(host_late, bubble)
    profiler = intersect(late_host, host.doing(PROFILER))
    late_host = subtract(late_host, profiler)
    was_blocked = blocked.contains(gaps.start)
    return Idle(
        host=late_host,
        sync=subtract(waited, bubble),
        turnaround=subtract(Intervals(waited.start[short], waited.end[short]), bubble),
        bubble=bubble,
        after_sync=intersect(late_host, union(gaps.start[was_blocked], gaps.end[was_blocked])),
        profiler=profiler,
        unseen=subtract(union(recorded_until, gaps.end), bubble),
    )


def waits_for_receives(ranges: Spans, gaps: Intervals) -> Intervals:
    """Returns the part of each gap, from its start to the end of the last gloo receive that ends in it, that receives
    cover. A receive that ends after the gap was not waited for."""
    receives = ranges.take(ranges.where(is_receive))
    if not len(receives):
        return EMPTY
    ends = np.sort(receives.end_us)
    last = np.searchsorted(ends, gaps.end, side="right") - 1
    until = np.where(last >= 0, ends[last], -np.inf)
    return intersect(union(gaps.start, np.minimum(until, gaps.end)), receives.covered())


def is_receive(name: str) -> bool:
    return name.startswith(GLOO_RECEIVE)


def _exchanges(ranges: Spans, blocked: Intervals) -> Intervals:
    """Returns the time in which the host is blocked in a synchronising call during an exchange with a pipeline peer."""
    return intersect(ranges.covered(ranges.where(communication.is_pipeline_range)), blocked)


def _ready(timeline: Timeline, launch: Launches, gaps: Intervals) -> Floats:
    """Returns float64[K]: when the launch of the work that ends each gap had returned; infinite if unknown.

    Minus infinity if other work of the same launch had run before, as in a graph. If several events end a gap at once,
    the launch that returned first counts.
    """
    events = timeline.device.spans
    at = np.searchsorted(gaps.end, events.start_us)
    ends = (events.end_us > events.start_us) & (np.append(gaps.end, np.nan)[at] == events.start_us)
    ready = np.where(launch.first_us[ends] < events.start_us[ends], -np.inf, launch.end_us[ends])
    first = np.full(len(gaps), np.inf)
    np.minimum.at(first, at[ends], ready)
    return first


def _unseen_from(timeline: Timeline, launch: Launches, gaps: Intervals, ready: Floats) -> Floats:
    """Returns float64[K]: for each gap, from when on work that the trace lacks may have run in it; infinite if never.

    Such work was launched after the last event before the gap and before the one that ends it.
    """
    lost = unseen(timeline, launch)
    if not len(lost):
        return np.full(len(gaps), np.inf)
    launched, ended = launch.start_us[launch.known], timeline.device.spans.end_us[launch.known]
    order = np.lexsort((launched, ended))
    before = np.searchsorted(ended[order], gaps.start, side="right")
    # the last that ran was launched before it ran, even if the clocks contradict
    last = np.minimum(np.append(-np.inf, launched[order])[before], gaps.start)
    at = np.searchsorted(lost, last, side="right")
    pending = np.append(lost, np.inf)[at]
    return np.where(pending < np.minimum(gaps.end, ready), np.maximum(pending, gaps.start), np.inf)
