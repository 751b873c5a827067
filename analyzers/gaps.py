"""Why a device was idle, gap by gap: host, sync, bubble or unattributed.

A gap is a stretch in which no stream of the device had anything running. What ends it tells its cause: if the
launch of that work began after the gap began, the host was late; if it had been launched before, the work waited
for another stream, a copy or an event. Kernels without a launch of their own (inside CUDA graphs) accuse nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.host import SYNCHRONISING_CALL, calls_named
from analyzers.intervals import EMPTY, Bools, Floats, Intervals, intersect, subtract, window
from analyzers.launches import Launches
from analyzers.timeline import Timeline
from analyzers.work import Work

PIPELINE_RANGE = "pp_send_recv"


@dataclass(frozen=True, kw_only=True, eq=False)
class Idle:
    """Disjoint sets of idle time by cause; idle time in none of them is unattributed."""

    host: Intervals = EMPTY
    sync: Intervals = EMPTY
    bubble: Intervals = EMPTY
    after_sync: Intervals = EMPTY  # the part of `host` that began while the host was in a synchronising call


def idle(timeline: Timeline, work: Work, launch: Launches, *, start_us: float, end_us: float) -> Idle:
    """Sort the device's gaps within [start_us, end_us] by cause."""
    gaps = subtract(window(start_us, end_us), work.busy)
    bubble = intersect(gaps, _pipeline_waits(timeline))
    launched = _launch_of_end(timeline, launch, gaps)
    late = launched > gaps.start
    # nothing is launched until the end of the window: the host had nothing to give, if its calls are known
    after_last = gaps.end >= end_us
    late &= ~np.isinf(launched) | (after_last & bool(len(timeline.calls)))
    after_sync = late & calls_named(timeline, SYNCHRONISING_CALL).contains(gaps.start)

    def chosen(those: Bools) -> Intervals:
        return subtract(Intervals(gaps.start[those], gaps.end[those]), bubble)

    return Idle(host=chosen(late), sync=chosen(launched <= gaps.start), bubble=bubble, after_sync=chosen(after_sync))


def _pipeline_waits(timeline: Timeline) -> Intervals:
    """The host blocked in a synchronising call while it exchanges with a pipeline peer."""
    ranges = timeline.ranges
    exchanging = ranges.covered(ranges.where(lambda name: name == PIPELINE_RANGE))
    return intersect(exchanging, calls_named(timeline, SYNCHRONISING_CALL)) if len(exchanging) else EMPTY


def _launch_of_end(timeline: Timeline, launch: Launches, gaps: Intervals) -> Floats:
    """float64[K]: when the launch began of the work that ends each gap, infinite if unknown.

    Of several that start at once the earliest launched, so that the order of events cannot matter.
    """
    events = timeline.device.spans
    lasting = events.end_us > events.start_us
    start, launched = events.start_us[lasting], launch.start_us[lasting]
    order = np.lexsort((launched, start))
    at = np.searchsorted(start[order], gaps.end)
    inside = at < len(order)
    ends = order[np.minimum(at, len(order) - 1)]
    starts_there = inside & (start[ends] == gaps.end)
    return np.where(starts_there, launched[ends], np.inf)
