"""Computes what the host was doing, as sets of time, to explain why a device was idle.

The rows of host_activities.csv are applied in order: a moment belongs to the first activity that covers it, then to the
framework's operators; the rest is Python. Rows apply only to threads that launch work, unless a row says otherwise: a
watchdog that synchronises, or a loader that reads ahead, delays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.intervals import Bools, Intervals, intersect, merge, subtract, union
from analyzers.names import kernels
from analyzers.names.host_activities import (
    ALLOCATOR,
    LAUNCHING,
    MODULE_LOADING,
    OPERATORS,
    OUTSIDE_CALLS,
    PYTHON,
    SYNCHRONISING,
    HostActivity,
    activities,
    is_call,
)
from analyzers.one_rank.launches import Launches
from analyzers.timeline import Activity, Ints, Spans, Timeline

# a call whose purpose is to wait, such as a synchronisation, counts as a wait from this duration: shorter waits change
# nothing, and are many
SHORTEST_WAIT_US = 10.0
SLOWEST_CALL_US = 100.0  # any other call counts as a wait from this duration: a launch into a full queue waits
# host activities between two launches at the usual pace; all others are stalls of their own
ISSUING = (LAUNCHING, OPERATORS, PYTHON, OUTSIDE_CALLS)

LAUNCH_OPERATOR = "c10d::"  # starts a collective and returns
# the first launch of a kernel that takes so long loads its module; others take 2 to 140 us in the real traces
SLOW_LAUNCH_US = 200.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Host:
    """The host of one rank.

    lanes: int64[L], the threads that launch work; launch: the launches of device events, on a GPU.
    """

    timeline: Timeline
    lanes: Ints
    launch: Launches | None = None

    def doing(self, activity: str) -> Intervals:
        """Returns the time of one activity, including time that other activities overlap."""
        sets = [self._named(row) for row in activities() if row.activity == activity]
        if activity == OPERATORS:
            ops = self.timeline.ops
            sets.append(ops.covered(ops.where(_is_operator) & self._issuing(ops)))
        if self.launch is not None and activity in _SHOWN_BY_LAUNCHES:
            sets.append(_SHOWN_BY_LAUNCHES[activity](self.timeline, self.launch))
        return merge(sets)

    def share_out(self, idle: Intervals) -> dict[str, Intervals]:
        """Divides idle time by the host's activity.

        Holds the set of one activity at a time in memory, since traces are long.
        """
        found = {}
        for activity in dict.fromkeys((*(row.activity for row in activities()), OPERATORS)):
            found[activity] = intersect(idle, self.doing(activity))
            idle = subtract(idle, found[activity])
        found[PYTHON if len(self.timeline.ops) else OUTSIDE_CALLS] = idle
        return {activity: when for activity, when in found.items() if len(when)}

    def waits(self) -> Spans | None:
        """Returns the calls that may have waited for the device.

        None if the trace lacks calls whose only purpose is to wait, as traces of old profilers do: then the host may
        have waited anywhere.
        """
        calls = self.timeline.calls
        if not calls.where(lambda name: "Memcpy" not in name and is_call(name, SYNCHRONISING)).any():
            return None
        by_nature = calls.where(lambda name: is_call(name, SYNCHRONISING) or is_call(name, ALLOCATOR))
        long = calls.end_us - calls.start_us >= np.where(by_nature, SHORTEST_WAIT_US, SLOWEST_CALL_US)
        return calls.take(long & self._issuing(calls))

    def _named(self, row: HostActivity) -> Intervals:
        events: Spans = getattr(self.timeline, row.events)
        those = events.where(lambda name: row.pattern.search(name) is not None)
        return events.covered(those if row.anywhere else those & self._issuing(events))

    def _issuing(self, events: Spans) -> Bools:
        return np.isin(events.lane, self.lanes)


def issuing_lanes(timeline: Timeline, launch: Launches) -> Ints:
    """Returns the threads that launched the device's work; all threads if calls and operators number threads
    differently."""
    lanes = launch.lanes
    ops = timeline.ops
    if len(ops) and not np.isin(ops.lane, lanes).any():
        return np.unique(np.concatenate((lanes, ops.lane, timeline.ranges.lane)))
    return lanes


def _is_operator(name: str) -> bool:
    """Returns true for native operators, false for Python functions and autograd's engine, which only enclose
    operators."""
    return kernels.operator(name).known or name.startswith(LAUNCH_OPERATOR)


def _first_launches(timeline: Timeline, launch: Launches) -> Intervals:
    """Returns the calls that took very long because they launched a kernel for the first time: the driver loads its
    module."""
    known = np.flatnonzero(launch.known & (timeline.device.activity == Activity.KERNEL))
    name = timeline.device.spans.name
    first_us = np.full(len(timeline.device.spans.names), np.inf)
    np.minimum.at(first_us, name[known], launch.start_us[known])
    slow = known[launch.end_us[known] - launch.start_us[known] > SLOW_LAUNCH_US]
    slow = slow[launch.start_us[slow] == first_us[name[slow]]]
    return union(launch.start_us[slow], launch.end_us[slow])


def _blocking_copies(timeline: Timeline, launch: Launches) -> Intervals:
    """Returns the calls that returned only when their copy was done: copies of pageable memory are synchronous."""
    copied = launch.known & (timeline.device.activity == Activity.COPY)
    copied &= launch.end_us >= timeline.device.spans.end_us
    return union(launch.start_us[copied], launch.end_us[copied])


_SHOWN_BY_LAUNCHES = {MODULE_LOADING: _first_launches, SYNCHRONISING: _blocking_copies}
