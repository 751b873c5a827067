"""Finds the range that is open on a thread at a moment.

Ranges nest, and the innermost relevant one counts. This gives a launch its meaning (`dispatch`, `recompute`, ...) by
the ranges around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from analyzers.intervals import Floats
from analyzers.timeline import Ints, Spans

NONE = -1


def innermost(ranges: Spans, value: Ints, lane: Ints, time: Floats) -> Ints:
    """Returns int64[Q]: the value of the innermost range open on `lane` at `time`; NONE if there is none.

    value: int64[len(ranges)]; ranges with the value NONE are ignored. lane: int64[Q]; time: float64[Q], µs.
    """
    found = np.full(len(time), NONE, dtype=np.int64)
    relevant = value != NONE
    for one in np.unique(ranges.lane[relevant]):
        here = np.flatnonzero(relevant & (ranges.lane == one))
        queries = np.flatnonzero(lane == one)
        if len(queries):
            since, open_value = _flatten(ranges.start_us[here], ranges.end_us[here], value[here])
            at = np.searchsorted(since, time[queries], side="right") - 1
            found[queries] = np.where(at >= 0, open_value[np.maximum(at, 0)], NONE)
    return found


def _flatten(start: Floats, end: Floats, value: Ints) -> tuple[Floats, Ints]:
    """Returns the moments at which the innermost open range changes, and its value from each of them on."""
    changes: list[tuple[float, int]] = []
    open_now: list[tuple[float, int]] = []  # (end, value), the innermost last
    order = np.lexsort((value, -end, start))
    columns = zip(start[order].tolist(), end[order].tolist(), value[order].tolist(), strict=True)
    for begin, until, what in columns:
        changes += _closed_by(begin, open_now)
        changes.append((begin, what))
        # clocks round: a child may outlast its parent by a digit
        open_now.append((min(until, open_now[-1][0]) if open_now else until, what))
    changes += _closed_by(math.inf, open_now)
    return np.array([time for time, _ in changes]), np.array([what for _, what in changes], dtype=np.int64)


def _closed_by(time: float, open_now: list[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """Pops the ranges that ended by `time` off the stack; yields the end of each, and the value of the range then
    innermost."""
    while open_now and open_now[-1][0] <= time:
        ended, _ = open_now.pop()
        yield ended, open_now[-1][1] if open_now else NONE


def outermost(spans: Spans) -> Spans:
    """Returns the spans that no other span of the same lane encloses."""
    kept = []
    for one in np.unique(spans.lane):
        here = np.flatnonzero(spans.lane == one)
        here = here[np.lexsort((-spans.end_us[here], spans.start_us[here]))]
        reach = np.maximum.accumulate(spans.end_us[here])
        kept.append(here[np.concatenate(([True], spans.start_us[here][1:] >= reach[:-1]))])
    return spans.take(np.concatenate(kept)) if kept else spans
