"""Cuts out the part of a trace that a user asks to analyse, without what comes before and after it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from analyzers.diagnosis import WHOLE, Stretch
from analyzers.errors import TraceError
from analyzers.intervals import Bools
from analyzers.steps import bare, named
from analyzers.timeline import NO_CORRELATION, DeviceEvents, MemoryEvents, Spans, Timeline

RANGES_NAMED = 8


def cut(timeline: Timeline, stretch: Stretch = WHOLE) -> Timeline:
    """Returns the events of a stretch: device work that starts in it, host events that overlap it, and the launches of
    that work.

    Times stay as they are.

    Raises:
        TraceError: the trace has no range of that name, or nothing is in that time.
    """
    if stretch.step_marker is not None:
        _known(timeline, stretch.step_marker)
    if stretch.whole:
        return timeline
    start, end = bounds(timeline, stretch)
    spans = timeline.device.spans
    inside = (spans.start_us >= start) & (spans.start_us < end)
    device = _of_device(timeline.device, inside)
    launching = np.isin(timeline.calls.correlation, device.spans.correlation)
    launching &= timeline.calls.correlation != NO_CORRELATION
    found = replace(
        timeline,
        device=device,
        calls=timeline.calls.take(launching | _reaching(timeline.calls, start, end)),
        ops=timeline.ops.take(_reaching(timeline.ops, start, end)),
        ranges=timeline.ranges.take(_reaching(timeline.ranges, start, end)),
        overhead=timeline.overhead.take(_reaching(timeline.overhead, start, end)),
        memory=_of_memory(timeline.memory, start, end),
    )
    if not len(found.device.spans) and not len(found.ops):
        first = _first_work(timeline)
        since, until = ((time - first) / 1e6 for time in (start, end))
        raise _empty(timeline, f"has no work from {since:.6g} to {until:.6g} s after its first event")
    return found


def bounds(timeline: Timeline, stretch: Stretch) -> tuple[float, float]:
    """Returns start and end of a stretch on the timeline's clock; 0 and infinity where it has no limit."""
    first = _first_work(timeline)
    start = 0.0 if stretch.from_us is None else first + stretch.from_us
    end = np.inf if stretch.to_us is None else first + stretch.to_us
    if stretch.range is None:
        return start, end
    of_name = _known(timeline, stretch.range)
    ranges = timeline.ranges.take(of_name)
    return max(start, float(ranges.start_us.min())), min(end, float(ranges.end_us.max()))


def _first_work(timeline: Timeline) -> float:
    """Returns when the device's first event starts; for a rank on CPUs its first operator; 0 without any."""
    spans = timeline.ops if timeline.device_index is None else timeline.device.spans
    return float(spans.start_us.min()) if len(spans) else 0.0


def _known(timeline: Timeline, name: str) -> Bools:
    """Returns bool[N]: the ranges of the name. Raises TraceError with the existing names if there are none."""
    found = named(timeline.ranges, name)
    if not found.any():
        counts = Counter(bare(timeline.ranges.names[code]) for code in timeline.ranges.name.tolist())
        names = ", ".join(f"{one} ({number})" for one, number in counts.most_common(RANGES_NAMED))
        raise _empty(timeline, f"has no range {name!r}", f"it has {names}" if names else "it has no ranges at all")
    return found


def _reaching(spans: Spans, start: float, end: float) -> Bools:
    inside: Bools = (spans.end_us > start) & (spans.start_us < end)
    return inside


def _of_device(device: DeviceEvents, chosen: Bools) -> DeviceEvents:
    return DeviceEvents(
        spans=device.spans.take(chosen),
        activity=device.activity[chosen],
        group=device.group[chosen],
        message=device.message[chosen],
    )


def _of_memory(memory: MemoryEvents | None, start: float, end: float) -> MemoryEvents | None:
    if memory is None:
        return None
    inside = (memory.time_us >= start) & (memory.time_us < end)
    columns = ("time_us", "lane", "address", "change_bytes", "allocated_bytes", "reserved_bytes")
    return replace(memory, **{column: getattr(memory, column)[inside] for column in columns})


def _empty(timeline: Timeline, what: str, hint: str = "choose another window (--range, --from, --to)") -> TraceError:
    return TraceError(Path(timeline.path), what, hint=hint)
