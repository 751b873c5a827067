"""Reads torch.profiler (Kineto) traces of every age: old and new categories, micro- and nanosecond clocks.

The columns a trace fills are chosen by an event's category alone; what an event means is decided later, by name.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import numpy as np

from analyzers.diagnosis import Dropped
from analyzers.errors import TraceError
from analyzers.intervals import Bools
from analyzers.readers.columns import Codes, SpanColumns, ints
from analyzers.readers.json_events import GZIP_MAGIC, Arguments, Event, JsonTrace
from analyzers.readers.messages import message_key, message_of
from analyzers.readers.naming import rank_in_name
from analyzers.timeline import NO_CORRELATION, Activity, DeviceEvents, Ints, Spans, Timeline

# category -> what it is; capitalised names were written until torch 1.10. The rest (python_function, flows,
# gpu_user_annotation, overhead, instants) says nothing that these do not.
DEVICE_CATEGORIES = {
    "kernel": Activity.KERNEL,
    "Kernel": Activity.KERNEL,
    "gpu_memcpy": Activity.COPY,
    "Memcpy": Activity.COPY,
    "gpu_memset": Activity.COPY,
    "Memset": Activity.COPY,
}
HOST_CATEGORIES = {
    "cuda_runtime": "calls",
    "cuda_driver": "calls",
    "hip_runtime": "calls",
    "Runtime": "calls",
    "cpu_op": "ops",
    "Operator": "ops",
    "user_annotation": "ranges",
}
# until torch 1.10 annotations were written as operators
ANNOTATION_NAMES = re.compile(r"^(ProfilerStep#|Optimizer\.|enumerate\(DataLoader\))")
KINETO_MARKS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"ph"')


def sniff(head: bytes) -> bool:
    """JSON, plain or gzipped, with one of the keys that a Chrome trace starts with."""
    if head.startswith(GZIP_MAGIC):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head)
        except zlib.error:
            return False
    return head.lstrip()[:1] in (b"{", b"[") and any(mark in head for mark in KINETO_MARKS)


def read(path: Path) -> list[Timeline]:
    """One timeline for each device that ran kernels, or one for a rank that worked on CPUs.

    Raises:
        TraceError: no event could be read, or none of them is work.
    """
    trace = JsonTrace(path=path)
    columns = _Columns()
    for batch in trace.batches():
        columns.add(batch)
    if columns.malformed:
        why = "no start time, or a negative duration"
        trace.dropped.append(Dropped(what="events", count=columns.malformed, why=why))
    if len(columns.device):
        return columns.device_timelines(trace)
    return [columns.cpu_timeline(trace)]


class _Columns:
    """The growing columns of one file."""

    def __init__(self) -> None:
        self.names, self.lanes = Codes(), Codes()
        self.device = SpanColumns()
        self.activity, self.device_index, self.group = array("q"), array("q"), array("q")
        self.message, self.messages = array("q"), Codes()
        self.host = {what: SpanColumns() for what in ("calls", "ops", "ranges")}
        self.malformed = 0

    def add(self, batch: Iterable[Event]) -> None:
        by_category: dict[str | None, list[Event]] = defaultdict(list)
        for event in batch:
            if event.ph == "X":
                by_category[event.cat].append(event)
        for category, events in by_category.items():
            if category in DEVICE_CATEGORIES:
                self._add_device(self._well_formed(events), DEVICE_CATEGORIES[category])
            elif category in HOST_CATEGORIES:
                self._extend(self.host[HOST_CATEGORIES[category]], self._well_formed(events))

    def _well_formed(self, events: list[Event]) -> list[Event]:
        # comparisons with NaN are false, so NaN times are malformed too
        good = [e for e in events if e.ts is not None and e.ts > -1e18 and (e.dur is None or e.dur >= 0)]
        self.malformed += len(events) - len(good)
        return good

    def _extend(self, into: SpanColumns, events: list[Event]) -> None:
        into.extend(
            start_us=[e.ts or 0.0 for e in events],
            end_us=[(e.ts or 0.0) + (e.dur or 0.0) for e in events],
            name=[self.names[e.name] for e in events],
            lane=[self.lanes[e.pid, e.tid] for e in events],
            correlation=[NO_CORRELATION if e.args is None else _known(e.args.correlation) for e in events],
        )

    def _add_device(self, events: list[Event], activity: Activity) -> None:
        self._extend(self.device, events)
        self.activity.extend(repeat(int(activity), len(events)))
        for event in events:
            arguments = event.args
            device = arguments.device if arguments else None
            self.device_index.append(device if device is not None else _number(event.pid))
            group = _group(arguments) if arguments else ""
            self.group.append(self.names[group] if group else -1)
            self.message.append(self.messages[message_key(arguments)] if group and arguments else -1)

    def device_timelines(self, trace: JsonTrace) -> list[Timeline]:
        origin, names = self._origin_us(), self._names()
        spans = self.device.spans(origin_us=origin, names=names)
        activity, device = ints(self.activity), ints(self.device_index)
        group, message = ints(self.group), ints(self.message)
        messages = tuple(message_of(key) for key in self.messages)
        host = self._host_spans(origin, names)
        timelines = []
        for index, mine in _by_device(activity, device):
            events = DeviceEvents(
                spans=spans.take(mine),
                activity=activity[mine].astype(np.int8),
                group=group[mine],
                message=message[mine],
            )
            timeline = _timeline(trace, origin=origin, index=index, device=events, host=host)
            timelines.append(replace(timeline, messages=messages))
        return timelines

    def cpu_timeline(self, trace: JsonTrace) -> Timeline:
        if not any(len(columns) for columns in self.host.values()):
            raise TraceError(
                trace.path,
                "holds no events" + "".join(f"; {d.why}" for d in trace.dropped),
                hint="record it again and let the profiler finish writing (stop() before the process ends)",
            )
        origin, names = self._origin_us(), self._names()
        host = self._host_spans(origin, names)
        if len(host["calls"]) or trace.device_properties or not _is_training_on_cpu(host["ranges"]):
            raise TraceError(
                trace.path,
                "has no device events, only the host's",
                hint="profile with activities=[CPU, CUDA]; on clusters check that CUPTI may be used "
                "(no other profiler attached, NVreg_RestrictProfilingToAdminUsers=0)",
            )
        spans = self.device.spans(origin_us=origin, names=names)
        none = np.empty(0, dtype=np.int64)
        device = DeviceEvents(spans=spans, activity=none.astype(np.int8), group=none, message=none)
        return _timeline(trace, origin=origin, index=None, device=device, host=host)

    def _origin_us(self) -> float:
        starts = (c.earliest_us() for c in (self.device, *self.host.values()))
        return min((s for s in starts if s is not None), default=0.0)

    def _names(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.names)

    def _host_spans(self, origin: float, names: tuple[str, ...]) -> dict[str, Spans]:
        spans = {what: c.spans(origin_us=origin, names=names) for what, c in self.host.items()}
        moved = spans["ops"].where(lambda name: ANNOTATION_NAMES.match(name) is not None)
        if moved.any():
            spans["ranges"] = _joined(spans["ranges"], spans["ops"].take(moved))
            spans["ops"] = spans["ops"].take(~moved)
        return spans


def _timeline(
    trace: JsonTrace, *, origin: float, index: int | None, device: DeviceEvents, host: dict[str, Spans]
) -> Timeline:
    rank = trace.info.rank
    return Timeline(
        path=str(trace.path),
        format="kineto",
        rank=rank if rank is not None else rank_in_name(trace.path),
        device_index=index,
        origin_us=origin + trace.base_ns / 1000,
        device=device,
        group_sizes={g.pg_desc: g.pg_size for g in trace.info.pg_config},
        world_size=trace.info.world_size,
        dropped=tuple(trace.dropped),
        calls=host["calls"],
        ops=host["ops"],
        ranges=host["ranges"],
    )


def _by_device(activity: Ints, device: Ints) -> Iterable[tuple[int, Bools]]:
    """The devices that ran kernels; copies seen on other ones (peer to peer) go with the first of them."""
    own = np.unique(device[activity == Activity.KERNEL])
    if not len(own):
        own = np.unique(device)[:1]
    strangers = ~np.isin(device, own)
    for index in own.tolist():
        yield index, (device == index) | (strangers if index == own[0] else False)


def _is_training_on_cpu(ranges: Spans) -> bool:
    return any(name.startswith(("gloo:", "ProfilerStep#")) or name == "step" for name in _used_names(ranges))


def _used_names(spans: Spans) -> list[str]:
    return [spans.names[i] for i in np.unique(spans.name)]


def _joined(a: Spans, b: Spans) -> Spans:
    both = {
        column: np.concatenate((getattr(a, column), getattr(b, column)))
        for column in ("start_us", "end_us", "name", "lane", "correlation")
    }
    return Spans(names=a.names, **both)


def _group(arguments: Arguments) -> str:
    return ":".join(part for part in (arguments.group, arguments.collective) if part)


def _known(correlation: int | None) -> int:
    return NO_CORRELATION if correlation is None else correlation


def _number(pid: int | float | str | None) -> int:
    return int(pid) if isinstance(pid, int | float) else 0
