"""Sets of time as sorted, disjoint intervals: union, intersection, difference, and time within a window.

All times of the analyzers are computed with these few functions, by sorting and sweeping (n log n). Overlapping streams
are therefore never counted twice, and the order of events never matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Intervals:
    """K sorted, disjoint intervals [start, end), each longer than zero.

    start, end: float64[K], microseconds. Make one with `union`, not from unsorted columns.
    """

    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total_us(self) -> float:
        return float(np.sum(self.end - self.start))

    @cached_property
    def _before(self) -> Floats:
        """Returns float64[K + 1]: the time covered before each interval; the last element is the total."""
        return np.concatenate(([0.0], np.cumsum(self.end - self.start)))

    def covered_until(self, time: Floats) -> Floats:
        """Returns the time covered before each of `time`."""
        if not len(self):
            return np.zeros(np.shape(time))
        i = np.searchsorted(self.start, time, side="right")
        last = np.maximum(i - 1, 0)
        into = np.clip(time, self.start[last], self.end[last]) - self.start[last]
        return np.where(i > 0, self._before[last] + into, 0.0)

    def within(self, start: Floats, end: Floats) -> Floats:
        """Returns the time covered inside each window: float64 of the windows' shape."""
        return self.covered_until(np.asarray(end)) - self.covered_until(np.asarray(start))

    def contains(self, time: Floats) -> Bools:
        """Returns true where `time` is inside an interval (start included, end excluded)."""
        if not len(self):
            return np.zeros(np.shape(time), dtype=bool)
        i = np.searchsorted(self.start, time, side="right") - 1
        return (i >= 0) & (time < self.end[np.maximum(i, 0)])


EMPTY = Intervals(np.empty(0), np.empty(0))


def union(start: Floats, end: Floats) -> Intervals:
    """Returns the time covered by at least one of the spans; spans of length 0 cover nothing."""
    lasting = end > start
    if not lasting.any():
        return EMPTY
    if not lasting.all():
        start, end = start[lasting], end[lasting]
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:] - 1, [len(start) - 1]))
    return Intervals(start[first], reach[last])


def merge(sets: Iterable[Intervals]) -> Intervals:
    """Returns the time in at least one of the sets."""
    parts = [s for s in sets if len(s)]
    if len(parts) < 2:
        return parts[0] if parts else EMPTY
    return union(np.concatenate([p.start for p in parts]), np.concatenate([p.end for p in parts]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Returns the time that lies in both sets of intervals."""
    if not len(a) or not len(b):
        return EMPTY
    start, end, in_a, in_b = _sweep(a, b)
    return _segments(start, end, in_a & in_b)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Returns the time in `a` and not in `b`."""
    if not len(a) or not len(b):
        return a
    start, end, in_a, in_b = _sweep(a, b)
    return _segments(start, end, in_a & ~in_b)


def window(start_us: float, end_us: float) -> Intervals:
    return union(np.array([start_us]), np.array([end_us]))


def _sweep(a: Intervals, b: Intervals) -> tuple[Floats, Floats, Bools, Bools]:
    """Returns start and end of the segments between all edges of both sets, with masks of those inside `a` and inside
    `b`."""
    edges = np.concatenate((a.start, a.end, b.start, b.end))
    order = np.argsort(edges, kind="stable")
    time = edges[order]
    inside = []
    for before, own in ((0, len(a)), (2 * len(a), len(b))):
        step = np.zeros(len(edges), dtype=np.int8)
        step[before : before + own] = 1
        step[before + own : before + 2 * own] = -1
        # a set's intervals are disjoint, so the sum is 0 or 1 and fits a byte
        inside.append(np.cumsum(step[order], dtype=np.int8)[:-1] > 0)
    return time[:-1], time[1:], inside[0], inside[1]


def _segments(start: Floats, end: Floats, chosen: Bools) -> Intervals:
    return union(start[chosen], end[chosen])
