"""The lanes of one rank in a stretch of time, for drawing: idle time by cause, streams, host threads.

A diagnosis does not keep events, so the trace is read again unless its reader kept them. Each event has a key for its
type (a class of compute, a kind of communication, a cause of idle time, a type of host event).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from analyzers.diagnosis import TraceReport
from analyzers.errors import TraceError
from analyzers.intervals import Floats, Intervals, intersect, merge, subtract, window
from analyzers.kernel_classes import COMPUTE_CLASSES, KINDS
from analyzers.names import kernels
from analyzers.one_rank.breakdown import Breakdown, break_down
from analyzers.one_rank.gpu import GRAPH_CLASS
from analyzers.one_rank.launches import launches
from analyzers.readers import read
from analyzers.readers.columns import Codes
from analyzers.timeline import Activity, Ints, Spans, Timeline, joined, look_up

NO_CALL = -1
ROUNDED_US = 2e-3  # an event that ends this much after the next one started does not enclose it: clocks round
NSIGHT_THREAD = 0xFFFFFF  # bits of the thread in a globalTid
# types of events, with their family before the dot
KEYS = (
    *(f"idle.{cause}" for cause in ("host", "sync", "bubble", "unattributed")),
    *(f"compute.{name}" for name in (*COMPUTE_CLASSES, GRAPH_CLASS)),
    *(f"communication.{kind}" for kind in KINDS),
    "copy",
    "host.range",
    "host.operator",
    "host.call",
)
KEY = {key: code for code, key in enumerate(KEYS)}
KEY_OF_LABEL = np.array(  # index into KEYS of each of kernel_times.CLASSES
    [KEY[key] for key in (*(f"compute.{c}" for c in COMPUTE_CLASSES), *(f"communication.{k}" for k in KINDS))]
)
FIRST_KIND = KEY[f"communication.{KINDS[0]}"]


class Place(StrEnum):
    IDLE = "idle"
    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, kw_only=True)
class Lane:
    place: Place
    label: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Lanes:
    """N events, sorted by lane, row and start.

    start_us, end_us: float64[N], counted from the start of the stretch; an event may begin before or end after it;
    lane, name, key: int64[N], indices into `lanes`, `names`, KEYS; row: int64[N], nesting depth; launch: int64[N], the
    position of the call that launched it (-1 if it is not included), None if not recorded; covered_us: float64[N], the
    time of the events that were merged into one, None if none are merged.
    """

    lanes: tuple[Lane, ...]
    names: tuple[str, ...]
    start_us: Floats
    end_us: Floats
    lane: Ints
    row: Ints
    name: Ints
    key: Ints
    duration_us: float
    launch: Ints | None = None
    covered_us: Floats | None = None

    def __len__(self) -> int:
        return len(self.start_us)


Kept = dict[tuple[str, int | None, float], Breakdown]  # breakdowns already read, by path, device and length of the span


def diagnosed(trace: TraceReport, kept: Kept | None = None) -> Breakdown:
    """Returns the breakdown behind a report: from `kept`, else read from the file again.

    Raises: TraceError: the trace no longer exists, or has changed since the diagnosis.
    """
    path = Path(trace.path)
    device = trace.devices[0] if trace.devices else None
    if kept and (place := (trace.path, device, trace.span.duration_us)) in kept:
        return kept[place]
    found = (break_down(timeline, trace.stretch) for timeline in read(path) if timeline.device_index == device)
    same = (one for one in found if one.span.duration_us == trace.span.duration_us)
    breakdown = next(same, None)
    if breakdown is None:
        raise TraceError(path, "changed since it was diagnosed", hint="do not modify it during the diagnosis")
    return breakdown


def lanes_of(breakdown: Breakdown, *, start_us: float, end_us: float) -> Lanes:
    """Returns every event that overlaps [start_us, end_us]."""
    timeline = breakdown.timeline
    drawn = _Drawn(start_us, end_us)
    drawn.add_sets(Lane(place=Place.IDLE, label="idle by cause"), _idle(breakdown))
    events, none = timeline.device.spans, np.full(len(timeline.ranges) + len(timeline.ops), NO_CALL)
    launched = launches(timeline).call
    drawn.add(Place.DEVICE, "stream", timeline, events, _device_keys(timeline, breakdown), launched)
    host = joined((timeline.ranges, timeline.ops, timeline.calls))
    calls = np.concatenate((none, np.arange(len(timeline.calls))))
    drawn.add(Place.HOST, "thread", timeline, host, _host_keys(timeline, breakdown), calls)
    return drawn.lanes()


class _Drawn:
    """The lanes of one stretch while they are collected."""

    def __init__(self, start_us: float, end_us: float) -> None:
        self._start, self._end = start_us, end_us
        self._lanes: list[Lane] = []
        self._names = Codes()
        self._columns: list[tuple[Floats, Floats, Ints, Ints, Ints, Ints, Ints]] = []

    def add(self, place: Place, kind: str, timeline: Timeline, spans: Spans, key: Ints, call: Ints) -> None:
        """Adds one drawn lane for each lane of the events, the busiest first.

        key: int64[N], the events' types; call: int64[N], the index of the call that an event is or that launched it,
        NO_CALL if there is none.
        """
        inside = (spans.end_us > self._start) & (spans.start_us < self._end)
        spans, key, call = spans.take(inside), key[inside], call[inside]
        name = look_up(spans.names, spans.name, lambda name: self._names[name])
        for code in _busiest_first(spans):
            here = np.flatnonzero(spans.lane == code)
            here = here[np.lexsort((name[here], -spans.end_us[here], spans.start_us[here]))]
            start, end = spans.start_us[here], spans.end_us[here]
            lane = np.full(len(here), len(self._lanes))
            self._lanes.append(Lane(place=place, label=_label(kind, _number(timeline, code))))
            self._columns.append((start, end, lane, _depth(start, end), name[here], key[here], call[here]))

    def add_sets(self, lane: Lane, sets: Iterable[tuple[str, str, Intervals]]) -> None:
        """Adds sets of time to one lane, each as (key, name, intervals)."""
        stretch = window(self._start, self._end)
        here = len(self._lanes)
        self._lanes.append(lane)
        for key, name, when in sets:
            part = intersect(when, stretch)
            codes = [np.full(len(part), code) for code in (here, 0, self._names[name], KEY[key], NO_CALL)]
            self._columns.append((part.start, part.end, codes[0], codes[1], codes[2], codes[3], codes[4]))

    def lanes(self) -> Lanes:
        columns = zip(*self._columns, strict=True)
        start, end, lane, row, name, key, call = (np.concatenate(column) for column in columns)
        order = np.lexsort((name, end, start, row, lane))
        return Lanes(
            lanes=tuple(self._lanes),
            names=tuple(str(name) for name in self._names),
            start_us=start[order] - self._start,
            end_us=end[order] - self._start,
            lane=lane[order],
            row=row[order],
            name=name[order],
            key=key[order],
            duration_us=self._end - self._start,
            launch=self._launches(lane[order], call[order]),
        )

    def _launches(self, lane: Ints, call: Ints) -> Ints:
        """Returns int64[N]: for device events the position of the call that launched them; -1 if that is not
        included."""
        on_device = np.array([one.place is Place.DEVICE for one in self._lanes])[lane]
        calls = np.flatnonzero(~on_device & (call != NO_CALL))
        place = np.full(int(call.max(initial=NO_CALL)) + 2, NO_CALL)  # the last element is for NO_CALL
        place[call[calls]] = calls
        return np.where(on_device, place[call], NO_CALL)


def _label(kind: str, number: str) -> str:
    return number if number.startswith(kind) else f"{kind} {number}"  # old traces already write `stream 7`


def _number(timeline: Timeline, lane: int) -> str:
    """Returns the number of a stream or thread as the profiler shows it; of Nsight's thread ids only the low bits."""
    return timeline.lane_names.get(lane, str(lane & NSIGHT_THREAD if lane > NSIGHT_THREAD else lane))


def _depth(start: Floats, end: Floats) -> Ints:
    """Returns int64[N]: the nesting depth of each event.

    start: sorted; events with equal starts are ordered longest first.
    """
    depth: Ints = np.arange(len(start)) - np.searchsorted(np.sort(end), start + ROUNDED_US, side="right")
    return np.maximum(depth, 0)


def _idle(breakdown: Breakdown) -> Iterator[tuple[str, str, Intervals]]:
    idle, span = breakdown.idle, breakdown.span
    explained = merge((*breakdown.host.values(), idle.sync, idle.bubble, idle.profiler))
    for activity, when in breakdown.host.items():
        yield "idle.host", f"host: {activity}", when
    yield "idle.sync", "sync: launched, and waiting", idle.sync
    yield "idle.unattributed", "unattributed: the profiler kept the host", idle.profiler
    yield "idle.bubble", "bubble: waiting for a pipeline peer", idle.bubble
    start = min([span.start_us, *(step.start_us for step in breakdown.windows)])
    end = max([span.end_us, *(step.end_us for step in breakdown.windows)])
    rest = subtract(subtract(window(start, end), breakdown.work.busy), explained)
    yield "idle.unattributed", "unattributed", rest


def _device_keys(timeline: Timeline, breakdown: Breakdown) -> Ints:
    """Returns int64[M]: the type of each device event, from the breakdown's classes."""
    activity, label = timeline.device.activity, breakdown.work.label
    key = np.full(len(activity), KEY["copy"])
    if label is not None:
        key[label >= 0] = KEY_OF_LABEL[label[label >= 0]]
    key[activity == Activity.GRAPH] = KEY["compute.graph"]
    return key


def _host_keys(timeline: Timeline, breakdown: Breakdown) -> Ints:
    """Returns int64[N]: the types of ranges, operators and calls, in this order.

    On CPUs operators are compute and gloo's ranges are communication.
    """
    on_cpu = timeline.device_index is None
    ranges, ops, calls = timeline.ranges, timeline.ops, timeline.calls
    of_range = np.full(len(ranges), KEY["host.range"])
    of_op = ops.code(_operator_key) if on_cpu else np.full(len(ops), KEY["host.operator"])
    if on_cpu:
        of_range = _range_keys(ranges, breakdown)
    return np.concatenate((of_range, of_op, np.full(len(calls), KEY["host.call"])))


def _operator_key(name: str) -> int:
    meaning = kernels.operator(name)
    return KEY.get(f"compute.{meaning.compute_class}" if meaning.known else "", KEY["host.operator"])


def _range_keys(ranges: Spans, breakdown: Breakdown) -> Ints:
    """Returns int64[N]: the types of ranges.

    Ranges on gloo's threads are collectives, matched to the breakdown's by lane and time.
    """
    collectives, kind = breakdown.work.collectives, breakdown.work.collective_kind
    kinds = dict(zip(_places(collectives), kind.tolist(), strict=True))
    found = [kinds.get(place, -1) for place in _places(ranges)]
    return np.array([KEY["host.range"] if code < 0 else FIRST_KIND + code for code in found], dtype=np.int64)


def _places(spans: Spans) -> Iterator[tuple[float, float, int]]:
    return zip(spans.start_us.tolist(), spans.end_us.tolist(), spans.lane.tolist(), strict=True)


def _busiest_first(spans: Spans) -> list[int]:
    """Returns the lanes by the time that their events cover, longest first: this puts the main thread before its
    helpers."""
    used = np.unique(spans.lane)
    covered = [spans.covered(spans.lane == lane).total_us for lane in used]
    return [int(used[at]) for at in np.lexsort((used, -np.array(covered)))]
