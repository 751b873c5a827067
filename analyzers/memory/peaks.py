"""Computes memory over time: its peak, what is alive at the peak, and the allocator's retries.

A reader's MemoryEvents, or a snapshot's history, become Levels; levels and phases become a MemoryUse. Levels that the
trace does not record are summed from the changes, and then lack memory that was allocated before the recording.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.diagnosis import MemoryUse
from analyzers.intervals import Floats
from analyzers.memory.phases import phases
from analyzers.names.host_activities import ALLOCATOR, is_call
from analyzers.nesting import outermost
from analyzers.repeats import Repeats
from analyzers.steps import Step
from analyzers.timeline import NO_TOTAL, Ints, MemoryEvents, Spans, Timeline

GIB = float(1 << 30)
BEFORE = "allocated before the recording"
CURVE_POINTS = 500
PHASES_SHOWN = 12
WORTH_SHOWING = 0.001  # share of the largest phase: smaller ones are summed as `other`
RELEASES = re.compile(r"Free|Unmap|Release")
OF_THE_HOST = re.compile(r"Host|Register")


@dataclass(frozen=True, kw_only=True, eq=False)
class Levels:
    """K changes of allocated memory in order of time.

    time_us: float64[K]; change_bytes, address: int64[K], NO_TOTAL for an address that is not recorded; allocated_bytes:
    float64[K], the level after each change; reserved_bytes: float64[K], None if not recorded; at_least: true if memory
    from before the recording is missing.
    """

    time_us: Floats
    change_bytes: Ints
    address: Ints
    allocated_bytes: Floats
    reserved_bytes: Floats | None
    at_least: bool

    @property
    def peak(self) -> int:
        """Returns the index of the first change with the highest level."""
        return int(np.argmax(self.allocated_bytes))

    def held(self) -> Ints:
        """Returns the indices of allocations that are alive at the peak; empty if addresses are not recorded."""
        until = np.arange(self.peak + 1)
        order = np.lexsort((until, self.address[: self.peak + 1]))
        address = self.address[order]
        last = order[np.append(address[1:] != address[:-1], True)] if len(order) else order
        return np.sort(last[(self.change_bytes[last] > 0) & (self.address[last] != NO_TOTAL)])


def memory_use(timeline: Timeline, windows: Sequence[Step], driver: Spans) -> MemoryUse | None:
    """Returns the memory use of one rank's device (of the host, for a rank on CPUs); None if it was not recorded.

    windows: the rank's steps; driver: its `driver_calls`.
    """
    events = timeline.memory
    if events is None or not len(events):
        return None
    levels = _levels(events, own=timeline.device_index is not None)
    held = levels.held()
    rows = np.append(held, levels.peak)
    names = phases(timeline, windows, events.lane[rows], events.time_us[rows])
    limit = timeline.memory_limit_bytes
    return describe(
        levels,
        windows,
        source=events.source,
        phase=names[-1],
        held_at_peak=by_phase(levels, held, names[:-1]),
        limit_gib=None if limit is None else limit / GIB,
        retries=_retries(events, driver) if len(timeline.calls) else None,
        driver_allocations=_inside(driver, windows, timeline.repeats),
        out_of_memory=events.refused,
    )


def describe(
    levels: Levels,
    windows: Sequence[Step],
    *,
    source: str,
    phase: str | None,
    held_at_peak: dict[str, float],
    limit_gib: float | None = None,
    retries: int | None,
    driver_allocations: int = 0,
    out_of_memory: int,
) -> MemoryUse:
    """Makes a MemoryUse from levels. windows: the steps, one of which is named as that of the peak."""
    at_us = float(levels.time_us[levels.peak])
    step = next((w for w in windows if w.start_us <= at_us <= w.end_us), None)
    into = None if step is None else (at_us - step.start_us) / max(step.end_us - step.start_us, 1e-9)
    reserved = levels.reserved_bytes
    return MemoryUse(
        source=source,
        peak_gib=float(levels.allocated_bytes[levels.peak]) / GIB,
        peak_at_us=at_us,
        peak_step=None if step is None else step.name,
        peak_at_share=into,
        peak_phase=phase,
        reserved_gib=None if reserved is None else float(reserved.max()) / GIB,
        limit_gib=limit_gib,
        fragmentation_gib=None if reserved is None else _unused(levels.allocated_bytes, reserved) / GIB,
        allocator_retries=retries,
        driver_allocations=driver_allocations,
        held_at_peak=held_at_peak,
        curve=_curve(levels),
        at_least=levels.at_least,
        out_of_memory=out_of_memory,
    )


def by_phase(
    levels: Levels, held: Ints, names: Sequence[str], *, before: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Returns GiB alive at the peak by the phase that allocated it, the most first; {} if nothing is known of it.

    Memory allocated before the recording is a part of its own, except for what `before` attributes to phases. Phases
    beyond PHASES_SHOWN or below WORTH_SHOWING are summed as `other`.
    """
    sums = dict(before or {})
    if not len(held) and not sums:
        return {}
    attributed = sum(sums.values())
    for name, size in zip(names, levels.change_bytes[held].tolist(), strict=True):
        sums[name] = sums.get(name, 0.0) + size / GIB
    from_before = float(levels.allocated_bytes[levels.peak] - levels.change_bytes[held].sum()) / GIB - attributed
    if from_before > 0 and not levels.at_least:
        sums[BEFORE] = from_before
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    shown = [(name, gib) for name, gib in ranked[:PHASES_SHOWN] if gib >= WORTH_SHOWING * ranked[0][1]]
    rest = sum(gib for _, gib in ranked[len(shown) :])
    return {**dict(shown), **({"other": rest} if rest > 0 else {})}


def driver_calls(calls: Spans) -> Spans:
    """Returns the calls that allocate or free device memory in the driver; of nested calls (runtime, driver) only the
    outer one."""
    return outermost(calls.take(calls.where(_of_device)))


def _of_device(name: str) -> bool:
    return is_call(name, ALLOCATOR) and OF_THE_HOST.search(name) is None


def _inside(calls: Spans, windows: Sequence[Step], repeats: Repeats) -> int:
    """Returns how many calls start in a step; calls in repeated windows count as often as these."""
    since, until = np.array([w.start_us for w in windows]), np.array([w.end_us for w in windows])
    return round(float(repeats.count_within(np.sort(calls.start_us), since, until).sum()))


def _levels(events: MemoryEvents, *, own: bool) -> Levels:
    """Returns the levels of a trace's events.

    own: true for the device's memory, whose totals count from the start of the process; the host's totals count from
    the start of the recording.
    """
    recorded = bool((events.allocated_bytes != NO_TOTAL).all())
    summed = np.cumsum(events.change_bytes, dtype=np.float64)
    allocated = events.allocated_bytes.astype(np.float64) if recorded else summed - min(0.0, float(summed.min()))
    reserved = events.reserved_bytes.astype(np.float64)
    if not (recorded and own) or bool((reserved == NO_TOTAL).any()):
        reserved_or_none = allocated if events.source == "nsys" else None
    else:
        reserved_or_none = reserved
    return Levels(
        time_us=events.time_us,
        change_bytes=events.change_bytes,
        address=events.address,
        allocated_bytes=allocated,
        reserved_bytes=reserved_or_none,
        at_least=not (recorded and own),
    )


def _unused(allocated: Floats, reserved: Floats) -> float:
    """Returns the fewest bytes that were reserved but not allocated while most was reserved: what could not be used."""
    return float(np.min((reserved - allocated)[reserved == reserved.max()]))


def _retries(events: MemoryEvents, driver: Spans) -> int | None:
    """Returns how many allocations failed at first and were retried after cached memory was freed; None if the trace
    does not record enough.

    In such a retry the driver is asked for memory between two events of the allocator, then gets memory back, then is
    asked again. A cache that is emptied on purpose has no first request.
    """
    if events.retries is not None:
        return events.retries
    if bool((events.reserved_bytes == NO_TOTAL).any()):
        return None
    releases = driver.where(lambda name: RELEASES.search(name) is not None)
    freed, requested = np.sort(driver.start_us[releases]), np.sort(driver.start_us[~releases])
    after = np.searchsorted(events.time_us, freed)
    known = (after < len(events)) & (after > 0)
    freed, after = freed[known], after[known]
    first = np.searchsorted(freed, events.time_us[after - 1])  # index of the first release in the same stretch
    before = np.searchsorted(requested, freed[first]) > np.searchsorted(requested, events.time_us[after - 1])
    again = np.searchsorted(requested, events.time_us[after]) > np.searchsorted(requested, freed)
    return len(np.unique(after[before & again & (events.change_bytes[after] > 0)]))


def _curve(levels: Levels) -> list[tuple[float, float]]:
    """Returns the level over time, (µs, GiB), thinned to the lowest and the highest level of each bin, which keeps the
    peak."""
    chosen = np.arange(len(levels.time_us))
    if len(chosen) > CURVE_POINTS:
        stretches = np.array_split(chosen, CURVE_POINTS // 2)
        level = levels.allocated_bytes
        ends = [(s[int(np.argmin(level[s]))], s[int(np.argmax(level[s]))]) for s in stretches]
        chosen = np.unique(np.array(ends))
    points = zip(levels.time_us[chosen].tolist(), levels.allocated_bytes[chosen].tolist(), strict=True)
    return [(round(time, 1), round(size / GIB, 6)) for time, size in points]
