"""Measures how fast the host launches work, to compare it with how long the device takes for it.

If kernels are shorter than the time from one launch to the next, the device waits at every launch: the host's launch
rate is the limit, whatever it does between launches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.intervals import EMPTY, Floats, Intervals, union
from analyzers.one_rank.launches import Launches
from analyzers.timeline import Activity, Timeline

USUAL_PACE = 4.0  # times the median interval between launches: beyond it something else delayed the host


@dataclass(frozen=True, kw_only=True, eq=False)
class Pace:
    """The launch rate of a rank.

    at_us: float64[N], when the N launches started, sorted; interval_us, kernel_us: medians of the time from one
    launch to the thread's next and of a kernel's duration, 0 if unknown. usual: the time between two launches of a
    thread that follow each other at its usual pace.
    """

    at_us: Floats
    interval_us: float = 0.0
    kernel_us: float = 0.0
    usual: Intervals = EMPTY


def pace(timeline: Timeline, launch: Launches) -> Pace:
    """Returns the pace of the threads that launched the device's work; a graph is one launch."""
    begins, ends, intervals, at = [], [], [np.empty(0)], [np.empty(0)]
    for lane in launch.lanes.tolist():
        launched = np.unique(launch.start_us[launch.lane == lane])
        between = np.diff(launched)
        usual = between <= USUAL_PACE * (np.median(between) if len(between) else 0.0)
        begins.append(launched[:-1][usual])
        ends.append(launched[1:][usual])
        intervals.append(between)
        at.append(launched)
    events, is_kernel = timeline.device.spans, timeline.device.activity == Activity.KERNEL
    return Pace(
        at_us=np.sort(np.concatenate(at)),
        interval_us=_median(np.concatenate(intervals)),
        kernel_us=_median(events.end_us[is_kernel] - events.start_us[is_kernel]),
        usual=union(np.concatenate(begins), np.concatenate(ends)) if begins else EMPTY,
    )


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else 0.0
