"""Measures how fast the host launches work compared with how fast the device executes it.

If kernels are shorter than the interval between launches, the device waits at every launch: then the launch rate of the
host is the limit, whatever the host does between launches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.intervals import EMPTY, Floats, Intervals, union
from analyzers.one_rank.launches import Launches
from analyzers.timeline import Activity, Timeline

USUAL_PACE = 4.0  # times the median interval between launches: a longer one has another cause than the pace


@dataclass(frozen=True, kw_only=True, eq=False)
class Pace:
    """The launch rate of a rank.

    at_us: float64[N], the starts of the N launches, sorted; interval_us: the median interval between two launches of a
    thread; kernel_us: the median duration of a kernel; both 0 if unknown. usual: the intervals between successive
    launches that are at most USUAL_PACE times as long as their thread's median.
    """

    at_us: Floats
    interval_us: float = 0.0
    kernel_us: float = 0.0
    usual: Intervals = EMPTY


def pace(timeline: Timeline, launch: Launches) -> Pace:
    """Returns the launch rate of the threads that launched the device's work; a graph counts as one launch."""
    begins, ends, intervals, at = list[Floats](), list[Floats](), [np.empty(0)], [np.empty(0)]
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
