"""What the host was doing, as sets of time: used to say why a device was idle.

The rows of host_activities.csv are looked through in order; a moment belongs to the first activity that covers it,
then to the framework's operators, and what none covers is Python. Only threads that issue work are asked where the
row says so: a watchdog that synchronises or a loader that reads ahead holds up nobody.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from analyzers import kernels
from analyzers.intervals import Intervals, merge, union
from analyzers.launches import Launches
from analyzers.timeline import Activity, Ints, Spans, Timeline
from analyzers.work import disjoint

PROFILER = "profiler"
GARBAGE_COLLECTION = "garbage_collection"
MODULE_LOADING = "module_loading"
ALLOCATOR = "allocator"
SYNCHRONISING = "synchronising_call"
DATA_LOADING = "data_loading"
COMPILING = "compiling"
LAUNCHING = "launching"
OPERATORS = "operators"
PYTHON = "python"
OUTSIDE_CALLS = "outside_calls"  # the same, where operators were not recorded
# calls into the driver that may wait for the device, from this long on: shorter ones move nothing, and are many
LONG_CALL_US = {SYNCHRONISING: 10.0, ALLOCATOR: 10.0, MODULE_LOADING: 100.0, LAUNCHING: 100.0}
# what the host does between two launches at its usual pace; the rest are stalls of their own
ISSUING = (LAUNCHING, OPERATORS, PYTHON, OUTSIDE_CALLS)

LAUNCH_OPERATOR = "c10d::"  # starts a collective and comes back
# the first launch of a kernel that takes so long loads its module; others take 2 to 140 us in the real traces
SLOW_LAUNCH_US = 200.0


@dataclass(frozen=True, kw_only=True)
class _Row:
    activity: str
    events: str  # a field of Timeline
    anywhere: bool  # on any thread, else only on those that issue work
    pattern: re.Pattern[str]


@cache
def _rows() -> tuple[_Row, ...]:
    text = resources.files("analyzers").joinpath("host_activities.csv").read_text(encoding="utf-8")
    return tuple(
        _Row(
            activity=row["activity"],
            events=row["events"],
            anywhere=row["threads"] == "any",
            pattern=re.compile(row["pattern"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


@cache
def is_call(name: str, activity: str) -> bool:
    """Whether a runtime call of this name is such an activity."""
    return any(r.pattern.search(name) for r in _rows() if r.activity == activity and r.events == "calls")


def host_activities(timeline: Timeline, lanes: Ints, launch: Launches | None = None) -> dict[str, Intervals]:
    """Disjoint sets of time, keyed by what the host was doing.

    lanes: int64[L], the threads that issue work; launch: on a device, what launched its events.
    """
    found: dict[str, list[Intervals]] = {}
    for row in _rows():
        events: Spans = getattr(timeline, row.events)
        if not row.anywhere:
            events = on_lanes(events, lanes)
        named = events.where(lambda name, pattern=row.pattern: pattern.search(name) is not None)  # type: ignore[misc]
        found.setdefault(row.activity, []).append(events.covered(named))
    if launch is not None:
        found[MODULE_LOADING].append(_first_launches(timeline, launch))
        found[SYNCHRONISING].append(_blocking_copies(timeline, launch))
    ops = on_lanes(timeline.ops, lanes)
    found[OPERATORS] = [ops.covered(ops.where(_is_operator))]
    return disjoint((activity, merge(sets)) for activity, sets in found.items())


def in_calls(timeline: Timeline, activity: str, lanes: Ints) -> Intervals:
    """The time in runtime calls that are such an activity, on these threads."""
    calls = on_lanes(timeline.calls, lanes)
    return calls.covered(calls.where(lambda name: is_call(name, activity)))


def on_lanes(events: Spans, lanes: Ints) -> Spans:
    """The events on these threads."""
    there = np.isin(events.lane, lanes)
    return events if there.all() else events.take(there)


def issuing_lanes(timeline: Timeline, launch: Launches) -> Ints:
    """The threads that launched the device's work; all, where calls and operators number threads in two ways."""
    lanes = launch.lanes
    ops = timeline.ops
    if len(ops) and not np.isin(ops.lane, lanes).any():
        return np.unique(np.concatenate((lanes, ops.lane, timeline.ranges.lane)))
    return lanes


def _is_operator(name: str) -> bool:
    """Native code, not a Python function or the autograd engine that only encloses some."""
    return kernels.operator(name).known or name.startswith(LAUNCH_OPERATOR)


def _first_launches(timeline: Timeline, launch: Launches) -> Intervals:
    """Calls that took very long to launch a kernel for the first time: the driver loads its module there."""
    known = np.flatnonzero(launch.known & (timeline.device.activity == Activity.KERNEL))
    order = known[np.lexsort((launch.start_us[known], timeline.device.spans.name[known]))]
    took = launch.end_us[order] - launch.start_us[order]
    is_first = np.diff(timeline.device.spans.name[order], prepend=-1) != 0
    slow = order[is_first & (took > SLOW_LAUNCH_US)]
    return union(launch.start_us[slow], launch.end_us[slow])


def _blocking_copies(timeline: Timeline, launch: Launches) -> Intervals:
    """Calls that came back only when their copy was done: to and from pageable memory they synchronise."""
    copied = launch.known & (timeline.device.activity == Activity.COPY)
    copied &= launch.end_us >= timeline.device.spans.end_us
    return union(launch.start_us[copied], launch.end_us[copied])
