"""The ranges of a trace as a call tree: the host time of each, and the device work launched inside it.

Ranges of one name under the same parents are one node. A thread without ranges (autograd's) works for the thread that
has most of them: its launches count for the ranges open there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from analyzers.intervals import Floats
from analyzers.nesting import NONE, innermost
from analyzers.one_rank.breakdown import Breakdown
from analyzers.one_rank.launches import launches
from analyzers.timeline import Activity, Ints, Spans

MAX_RANGES = 300_000  # most ranges of a trace for a tree: of more, it would show little more than the sums by name
MIN_SHARE = 0.001  # share of the trace: shorter nodes are left out
MAX_EARLY_SHARE = 1e-3  # share of a range that may precede the longer range that encloses it
ROUNDED_US = 2e-3  # a child may outlast its parent by as much: clocks round


@dataclass(frozen=True, kw_only=True)
class Node:
    """A range name under its parents, everything below included.

    host_us: the time it was open; device_us: the time of the work launched in that time, without copies; kernels: the
    number of device events of that work.
    """

    depth: int
    name: str
    count: int
    host_us: float
    device_us: float
    kernels: int


def range_tree(breakdown: Breakdown) -> list[Node]:
    """Returns the nodes depth first, siblings longest first; [] if there are no ranges, or more than MAX_RANGES."""
    ranges = breakdown.timeline.ranges
    if not 0 < len(ranges) <= MAX_RANGES:
        return []
    ranges = _aligned(ranges)
    parent = _parents(ranges)
    node, above, names = _nodes(ranges, parent)
    took = np.maximum(ranges.end_us - ranges.start_us, 0.0)
    host = np.bincount(node, weights=took, minlength=len(above))
    count = np.bincount(node, minlength=len(above))
    device, kernels = _device(breakdown, ranges, node, above)
    span = breakdown.span.duration_us
    least = MIN_SHARE * (span if span > 0 else float(took.max(initial=0.0)))
    children: dict[int, list[int]] = {}
    for one, over in enumerate(above.tolist()):
        if max(host[one], device[one]) >= least:
            children.setdefault(over, []).append(one)

    def walk(over: int, depth: int) -> Iterator[Node]:
        for one in sorted(children.get(over, ()), key=lambda k: (-max(host[k], device[k]), names[k])):
            yield Node(
                depth=depth,
                name=names[one],
                count=int(count[one]),
                host_us=float(host[one]),
                device_us=float(device[one]),
                kernels=int(kernels[one]),
            )
            yield from walk(one, depth + 1)

    return list(walk(NONE, 0))


def _aligned(ranges: Spans) -> Spans:
    """Moves the start of a range that starts slightly before a longer one in which it ends, since it is that one's
    child."""
    start = ranges.start_us.copy()
    for lane in np.unique(ranges.lane):
        here = np.flatnonzero(ranges.lane == lane)
        here = here[np.lexsort((-ranges.end_us[here], ranges.start_us[here]))]
        begins, ends = ranges.start_us[here], ranges.end_us[here]
        until = np.searchsorted(begins, begins + MAX_EARLY_SHARE * (ends - begins), side="right")
        for at in np.flatnonzero(until > np.arange(len(here)) + 1).tolist():
            beyond = np.flatnonzero(ends[at + 1 : until[at]] > ends[at] + ROUNDED_US)
            if len(beyond):
                start[here[at]] = begins[at + 1 + beyond[0]]
    return replace(ranges, start_us=start)


def _parents(ranges: Spans) -> Ints:
    """Returns int64[N]: the range on the same thread that encloses each directly, NONE for outermost ones."""
    parent = np.full(len(ranges), NONE, dtype=np.int64)
    for lane in np.unique(ranges.lane):
        here = np.flatnonzero(ranges.lane == lane)
        here = here[np.lexsort((-ranges.end_us[here], ranges.start_us[here]))]
        open_now: list[int] = []
        for one in here.tolist():
            while open_now and ranges.end_us[open_now[-1]] <= ranges.start_us[one] + ROUNDED_US:
                open_now.pop()
            parent[one] = open_now[-1] if open_now else NONE
            open_now.append(one)
    return parent


def _nodes(ranges: Spans, parent: Ints) -> tuple[Ints, Ints, list[str]]:
    """Returns int64[N], the node of each range; int64[K], the parent of each node; and K names. Parents come first."""
    node = np.full(len(ranges), NONE, dtype=np.int64)
    known: dict[tuple[int, int], int] = {}
    order = np.lexsort((-ranges.end_us, ranges.start_us))
    for one in order.tolist():
        over = NONE if parent[one] == NONE else int(node[parent[one]])
        node[one] = known.setdefault((over, int(ranges.name[one])), len(known))
    above = np.array([over for over, _ in known], dtype=np.int64)
    return node, above, [ranges.names[name] for _, name in known]


def _device(breakdown: Breakdown, ranges: Spans, node: Ints, above: Ints) -> tuple[Floats, Floats]:
    """Returns float64[K] twice: the device time, and the number of device events, launched inside each node."""
    timeline = breakdown.timeline
    spans, launch = timeline.device.spans, launches(timeline)
    work = np.flatnonzero(launch.known & (timeline.device.activity != Activity.COPY))
    lanes, counts = np.unique(ranges.lane, return_counts=True)
    main = int(lanes[counts.argmax()])
    lane = np.where(np.isin(launch.lane[work], lanes), launch.lane[work], main)
    place = innermost(ranges, np.arange(len(ranges)), lane, launch.start_us[work])
    inside = place != NONE
    at, took = node[place[inside]], (spans.end_us - spans.start_us)[work][inside]
    device = np.bincount(at, weights=took, minlength=len(above)).astype(np.float64)
    kernels = np.bincount(at, minlength=len(above)).astype(np.float64)
    for one in range(len(above) - 1, -1, -1):  # parents come before their children
        if above[one] != NONE:
            device[above[one]] += device[one]
            kernels[above[one]] += kernels[one]
    return device, kernels
