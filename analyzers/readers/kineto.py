"""Reads torch.profiler (Kineto) traces of all versions of torch: old and new categories, microsecond and nanosecond
clocks. The category of an event decides which columns it goes into; its meaning is found later, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from analyzers.errors import TraceError
from analyzers.intervals import Floats
from analyzers.readers.chunks import beginning
from analyzers.readers.columns import Codes, Column, SpanColumns
from analyzers.readers.devices import by_device
from analyzers.readers.excerpts import excerpt
from analyzers.readers.json_events import Arguments, Event, JsonTrace
from analyzers.readers.losses import NEVER_ENDED, NO_TIMES, cut_words
from analyzers.readers.memory_events import INSTANT, MemoryColumns
from analyzers.readers.messages import message_key, message_of
from analyzers.readers.naming import rank_in_name
from analyzers.readers.pairs import HALVES, whole_events
from analyzers.timeline import NO_CORRELATION, Activity, DeviceEvents, Spans, Timeline, in_use, joined

# category -> activity; capitalised names were written until torch 1.10. Of other categories (python_function, flows,
# gpu_user_annotation, instants) only COLLECTIONS and the allocator's instants are read.
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
    "overhead": "overhead",
}
ANNOTATION_CATEGORY = "user_annotation"
PYTHON_CATEGORY = "python_function"
# the only Python functions that are kept, since a garbage collection stops every thread
COLLECTIONS = ("Python GC", "gc.collect", "<built-in function collect>")
# until torch 1.10 annotations were written as operators
ANNOTATION_NAMES = re.compile(r"^(ProfilerStep#|Optimizer\.|enumerate\(DataLoader\))")
KINETO_MARKS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"ph"')


EARLIEST_US, LATEST_US = -1e16, 1e16  # times outside are invalid: a float64 does not resolve microseconds there


def sniff(head: bytes) -> bool:
    """Returns true for JSON, plain or gzipped, with one of the usual keys of a Chrome trace near its start."""
    text = beginning(head)
    return text.lstrip()[:1] in (b"{", b"[") and any(mark in text for mark in KINETO_MARKS)


def read(path: Path) -> list[Timeline]:
    """Returns one timeline per device that ran kernels, or one for a rank that computed on CPUs.

    Raises: TraceError: no event could be read, or none of them is work.
    """
    trace = JsonTrace(path=path)
    columns = _Columns()
    for batch in trace.batches():
        columns.add(batch)
    columns.finish(trace)
    found = columns.device_timelines(trace) if len(columns.device) else [columns.cpu_timeline(trace)]
    return [replace(timeline, lane_names=columns.lane_names()) for timeline in found]


class _Columns:
    """The columns of one file while it is read."""

    def __init__(self) -> None:
        self.names, self.lanes = Codes(), Codes()
        self.device = SpanColumns()
        self.activity, self.device_index, self.group = Column("b"), Column("q"), Column("i")
        self.message, self.messages = Column("i"), Codes()
        self.host = {what: SpanColumns() for what in ("calls", "ops", "ranges", "overhead")}
        self.memory = MemoryColumns(self.lanes)
        self.halves: list[Event] = []
        self.malformed = 0

    def add(self, batch: Iterable[Event]) -> None:
        kept: dict[str | None, list[Event]] = {category: [] for category in (*DEVICE_CATEGORIES, *HOST_CATEGORIES)}
        instants: list[Event] = []
        for event in batch:
            if event.ph == "X":
                if event.cat in kept:
                    kept[event.cat].append(event)
                elif event.cat == PYTHON_CATEGORY and event.name in COLLECTIONS:
                    kept[ANNOTATION_CATEGORY].append(event)
            elif event.ph in HALVES:  # an end event need not have a category
                self.halves.append(event)
            elif event.ph == INSTANT:
                instants.append(event)
        self.memory.add(instants)
        for category, events in kept.items():
            if not events:
                continue
            if category in DEVICE_CATEGORIES:
                self._add_device(events, DEVICE_CATEGORIES[category])
            elif category in HOST_CATEGORIES:
                self._add_host(events, HOST_CATEGORIES[category])

    def finish(self, trace: JsonTrace) -> None:
        """Adds the events that need the whole file to have been read, and counts the missing ones."""
        events, missing = whole_events(self.halves)
        self.halves = []
        self.add(events)
        trace.losses.add("events", missing, NEVER_ENDED)
        trace.losses.add("events", self.malformed, NO_TIMES)

    def _timed(self, events: list[Event]) -> tuple[list[Event], Floats, Floats]:
        """Returns the events that have a start and a duration, with both, float64[N]; counts the others as
        malformed."""
        start = np.array([e.ts for e in events], dtype=np.float64)  # None becomes NaN
        took = np.array([e.dur for e in events], dtype=np.float64)
        with np.errstate(invalid="ignore"):
            good = (start > EARLIEST_US) & (start < LATEST_US) & (took >= 0) & (took < LATEST_US)
        if not good.all():
            self.malformed += len(events) - int(good.sum())
            events = [event for event, fine in zip(events, good.tolist(), strict=True) if fine]
            start, took = start[good], took[good]
        return events, start, took

    def _add_host(self, events: list[Event], what: str) -> None:
        events, start, took = self._timed(events)
        correlation = CORRELATIONS[what](events) if what in CORRELATIONS else None
        self._extend(self.host[what], events, start, took, correlation)

    def _add_device(self, events: list[Event], activity: Activity) -> None:
        events, start, took = self._timed(events)
        self._extend(self.device, events, start, took, _correlations(events))
        self.activity.extend(np.full(len(events), int(activity)))
        self.device_index.extend_whole([_device(event) for event in events], missing=0)
        group = [-1 if (a := e.args) is None or not (a.group or a.collective) else self._group(a) for e in events]
        self.group.extend_whole(group, missing=-1)
        self.message.extend_whole(
            [-1 if code < 0 else self._message(event.args) for event, code in zip(events, group, strict=True)],
            missing=-1,
        )

    def _extend(
        self, into: SpanColumns, events: list[Event], start: Floats, took: Floats, correlation: list[int | None] | None
    ) -> None:
        names, lanes = self.names, self.lanes
        into.extend(
            start_us=start,
            end_us=start + took,
            name=[names[e.name] for e in events],
            lane=[lanes[e.pid, e.tid] for e in events],
            correlation=correlation,
        )

    def _group(self, arguments: Arguments) -> int:
        """Returns the code of "<process group's description>:<collective>"."""
        return self.names[":".join(part for part in (arguments.group, arguments.collective) if part)]

    def _message(self, arguments: Arguments | None) -> int:
        return -1 if arguments is None else self.messages[message_key(arguments)]

    def device_timelines(self, trace: JsonTrace) -> list[Timeline]:
        origin, names = self._origin_us(), self._names()
        spans = self.device.spans(origin_us=origin, names=names)
        activity, device, group = self.activity.array(), self.device_index.array(), self.group.array()
        message, messages = self.message.array(), tuple(message_of(key) for key in self.messages)
        host = self._host_spans(origin, names)
        timelines = []
        for index, mine in by_device(activity, device):
            events = DeviceEvents(
                spans=spans.take(mine), activity=activity[mine], group=group[mine], message=message[mine]
            )
            calls = host["calls"].unlinked(of=spans.correlation[~mine], but=events.spans.correlation)
            timeline = _timeline(trace, origin=origin, index=index, device=events, host={**host, "calls": calls})
            memory = self.memory.of_device(index, origin)
            timelines.append(replace(timeline, messages=messages, memory=memory))
        return timelines

    def cpu_timeline(self, trace: JsonTrace) -> Timeline:
        if not any(len(columns) for columns in self.host.values()):
            lost = "; ".join(each.why for each in trace.losses.dropped())
            raise TraceError(
                trace.path,
                f"has no events that can be read: {lost}" if lost else "has no events",
                hint="record it again and let the profiler finish writing (stop() before the process ends)",
            )
        origin, names = self._origin_us(), self._names()
        host = self._host_spans(origin, names)
        if len(host["calls"]) or trace.device_properties or not _is_training_on_cpu(host["ranges"]):
            raise _no_device_events(trace)
        if trace.device_properties is None and not _is_of_gloo(host["ranges"]):
            _refuse_unknown_device(trace)
        spans = self.device.spans(origin_us=origin, names=names)
        none = np.empty(0, dtype=np.int64)
        device = DeviceEvents(spans=spans, activity=none.astype(np.int8), group=none, message=none)
        timeline = _timeline(trace, origin=origin, index=None, device=device, host=host)
        return replace(timeline, memory=self.memory.of_device(None, origin))

    def lane_names(self) -> dict[int, str]:
        return {code: str(lane[1]) for lane, code in self.lanes.items() if isinstance(lane, tuple)}

    def _origin_us(self) -> float:
        starts = (c.earliest_us() for c in (self.device, *self.host.values()))
        return min((s for s in starts if s is not None), default=0.0)

    def _names(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.names)

    def _host_spans(self, origin: float, names: tuple[str, ...]) -> dict[str, Spans]:
        spans = {what: c.spans(origin_us=origin, names=names) for what, c in self.host.items()}
        moved = spans["ops"].where(lambda name: ANNOTATION_NAMES.match(name) is not None)
        if moved.any():
            spans["ranges"] = joined((spans["ranges"], spans["ops"].take(moved)))
            spans["ops"] = spans["ops"].take(~moved)
        return spans


WHOLE_AGAIN = (
    "copy the whole file again; if the profiler left it like this, let it finish writing (stop() before the process "
    "ends)"
)


def _no_device_events(trace: JsonTrace) -> TraceError:
    cut = cut_words(trace.losses.dropped())
    if cut:
        what = f"is {cut}, before the first event of the device: profilers write those last"
        return TraceError(trace.path, what, hint=WHOLE_AGAIN)
    return TraceError(
        trace.path,
        "has no device events, only host events",
        hint="profile with activities=[CPU, CUDA]; on clusters check that CUPTI may be used "
        "(no other profiler attached, NVreg_RestrictProfilingToAdminUsers=0)",
    )


def _refuse_unknown_device(trace: JsonTrace) -> None:
    """Raises TraceError if the end of the file is missing, where the events of a GPU would be."""
    if cut := cut_words(trace.losses.dropped()):
        what = (
            f"is {cut}, and nothing before that shows whether the rank computed on a GPU: its events are written last"
        )
        raise TraceError(trace.path, what, hint=WHOLE_AGAIN)


def _timeline(
    trace: JsonTrace, *, origin: float, index: int | None, device: DeviceEvents, host: dict[str, Spans]
) -> Timeline:
    header = excerpt(trace.excerpt)
    return Timeline(
        path=str(trace.path),
        format="kineto",
        rank=trace.rank if trace.rank is not None else rank_in_name(trace.path),
        device_index=index,
        origin_us=origin + trace.base_ns / 1000,
        device=device,
        group_sizes=trace.group_sizes,
        world_size=trace.world_size,
        dropped=trace.losses.dropped(),
        calls=host["calls"],
        ops=host["ops"],
        ranges=host["ranges"],
        overhead=host["overhead"],
        memory_limit_bytes=_memory_of(trace.device_properties or [], index),
        compute_capability=_capability_of(trace.device_properties or [], index),
        simulated=_is_simulated(trace.device_properties or []),
        microbatches=header.microbatches,
        microbatches_traced=header.traced,
        repeats=header.repeats(origin),
        warnings=header.warnings,
    )


def _memory_of(properties: Sequence[Any], index: int | None) -> int | None:
    """Returns the total memory of a device in bytes, from the header of the trace; None if it is not there."""
    found = (p.get("totalGlobalMem") for p in properties if isinstance(p, dict) and p.get("id") == index)
    size = next(found, None)
    return size if isinstance(size, int) and size > 0 else None


def _capability_of(properties: Sequence[Any], index: int | None) -> tuple[int, int] | None:
    """Returns the compute capability of a device, from the header of the trace; None if it is not there."""
    found = next((p for p in properties if isinstance(p, dict) and p.get("id") == index), {})
    major, minor = found.get("computeMajor"), found.get("computeMinor")
    return (major, minor) if isinstance(major, int) and isinstance(minor, int) and major > 0 else None


def _is_simulated(properties: Sequence[Any]) -> bool:
    """Returns true if the name of a device says that it was simulated (`simulated h100`)."""
    names = (str(p.get("name", "")) for p in properties if isinstance(p, dict))
    return any(name.startswith("simulated ") for name in names)


def _is_training_on_cpu(ranges: Spans) -> bool:
    return any(name.startswith(("gloo:", "ProfilerStep#")) or name == "step" for name in _used_names(ranges))


def _is_of_gloo(ranges: Spans) -> bool:
    """Returns true if the ranks communicated by gloo only; ranks on GPUs use NCCL as well."""
    names = _used_names(ranges)
    return any(name.startswith("gloo:") for name in names) and not any(name.startswith("nccl:") for name in names)


def _used_names(spans: Spans) -> list[str]:
    return [spans.names[i] for i in in_use(len(spans.names), spans.name).tolist()]


def _correlations(events: list[Event]) -> list[int | None]:
    return [None if e.args is None else e.args.correlation for e in events]


def _sequence_numbers(events: list[Event]) -> list[int | None]:
    return [NO_CORRELATION if e.args is None else e.args.sequence for e in events]


CORRELATIONS = {"calls": _correlations, "ops": _sequence_numbers}


def _device(event: Event) -> int | None:
    """Returns the device's number from the arguments; up to torch 1.10, from the process, as devices were recorded
    there. None if neither is a number."""
    if event.args is not None and event.args.device is not None:
        return event.args.device
    return event.pid if isinstance(event.pid, int) else None
