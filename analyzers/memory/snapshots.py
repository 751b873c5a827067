"""Makes a MemoryUse from a snapshot's history.

Levels are counted back from the allocator's state at the end: the history is a ring buffer, so that it may lack the
allocation of memory that it releases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analyzers.diagnosis import MemoryUse
from analyzers.intervals import Bools, Floats
from analyzers.memory.peaks import GIB, Levels, by_phase, describe
from analyzers.memory.phases import innermost_annotation, short
from analyzers.nesting import NONE
from analyzers.readers.snapshots import DeviceHistory, number
from analyzers.steps import steps_among
from analyzers.timeline import NO_TOTAL, Ints, Spans

ALLOCATED, RELEASED, RESERVED, GIVEN_BACK, REFUSED = range(5)
ACTIONS = {
    "alloc": ALLOCATED,
    "free": RELEASED,  # torch 2.0 and before
    "free_requested": RELEASED,  # torch counts it as free from then on
    "segment_alloc": RESERVED,
    "segment_map": RESERVED,
    "segment_free": GIVEN_BACK,
    "segment_unmap": GIVEN_BACK,
    "oom": REFUSED,
}
LIVE = "active_allocated"
EMPTIED = "empty_cache"  # a function in the stack of a cache that is emptied on purpose
NO_STACK = "no stack recorded"
AUTOGRAD = "autograd::Engine"
FRAMEWORK = ("/torch/", "<frozen", "<string>")


def snapshot_use(history: DeviceHistory) -> MemoryUse:
    """Returns the memory of a snapshot's device; times are Unix microseconds."""
    entries = [entry for entry in history.entries if entry.get("action") in ACTIONS]
    action = np.array([ACTIONS[entry["action"]] for entry in entries], dtype=np.int64)
    levels = _levels(history, entries, action)
    if not len(entries):
        held = _still_held(history, frozenset())
        return MemoryUse(
            source="snapshot",
            peak_gib=float(levels.allocated_bytes[0]) / GIB,
            reserved_gib=None if levels.reserved_bytes is None else float(levels.reserved_bytes[0]) / GIB,
            held_at_peak=held,
        )
    ranges = _ranges(history.annotations, float(levels.time_us[-1]))
    held_rows = levels.held()
    rows = np.append(held_rows, levels.peak)
    annotation = innermost_annotation(ranges, np.zeros(len(rows), dtype=np.int64), levels.time_us[rows])
    names = [
        short(ranges.names[code]) if code != NONE else _allocated_by(entries[row])
        for code, row in zip(annotation.tolist(), rows.tolist(), strict=True)
    ]
    seen = frozenset(entry.get("addr") for entry in entries if entry["action"] == "alloc")
    return describe(
        levels,
        steps_among(ranges),
        source="snapshot",
        phase=names[-1],
        held_at_peak=by_phase(levels, held_rows, names[:-1], before=_still_held(history, seen)),
        retries=_retries(entries, action),
        out_of_memory=int(np.count_nonzero(action == REFUSED)),
    )


def _levels(history: DeviceHistory, entries: Sequence[Mapping[str, Any]], action: Ints) -> Levels:
    size = np.array([number(entry.get("size")) for entry in entries], dtype=np.int64)
    address = np.array([number(entry.get("addr")) for entry in entries], dtype=np.int64)
    tensors = (action == ALLOCATED) | (action == RELEASED)
    size = _released_as_allocated(size, address, action)
    change = np.where(action == ALLOCATED, size, np.where(action == RELEASED, -size, 0))
    growth = np.where(action == RESERVED, size, np.where(action == GIVEN_BACK, -size, 0))
    blocks = [block for segment in history.segments for block in _blocks(segment)]
    now = sum(_requested(block) for block in blocks if block.get("state") == LIVE)
    reserved = sum(number(segment.get("total_size")) for segment in history.segments)
    if not len(entries):
        change = growth = address = np.zeros(1, dtype=np.int64)
        tensors = np.zeros(1, dtype=bool)
    return Levels(
        time_us=_times(entries) if len(entries) else np.zeros(1),
        change_bytes=change,
        address=np.where(tensors, address, NO_TOTAL),
        allocated_bytes=_counted_back(change, now),
        reserved_bytes=_counted_back(growth, reserved) if history.segments else None,
        at_least=not history.segments,
    )


def _counted_back(change: Ints, at_the_end: int) -> Floats:
    """Returns float64[K]: the level after each change, counted back from the end.

    A negative level means that memory is missing at the end; then all levels are raised.
    """
    summed = np.cumsum(change, dtype=np.float64)
    level = at_the_end + summed - summed[-1]
    return np.asarray(level - min(0.0, float(level.min()), float(level[0] - change[0])))


def _released_as_allocated(size: Ints, address: Ints, action: Ints) -> Ints:
    """Gives each release the size of its allocation, since some versions of torch record rounded sizes in only one of
    the two."""
    rows = np.flatnonzero((action == ALLOCATED) | (action == RELEASED))
    order = rows[np.argsort(address[rows], kind="stable")]
    before, after = order[:-1], order[1:]
    pair: Bools = (address[before] == address[after]) & (action[before] == ALLOCATED) & (action[after] == RELEASED)
    found = size.copy()
    found[after[pair]] = size[before[pair]]
    return found


def _times(entries: Sequence[Mapping[str, Any]]) -> Floats:
    """Returns float64[K], µs. torch 2.0 recorded no times; then the order of the entries is used."""
    times = [number(entry.get("time_us")) for entry in entries]
    return np.maximum.accumulate(np.array(times if any(times) else range(len(entries)), dtype=np.float64))


def _blocks(segment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    blocks = segment.get("blocks")
    return [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []


def _requested(block: Mapping[str, Any]) -> int:
    return number(block.get("requested_size")) or number(block.get("size"))


def _still_held(history: DeviceHistory, seen: frozenset[Any]) -> dict[str, float]:
    """Returns GiB alive at the end by call site, for blocks whose allocation is not in the history."""
    sums: dict[str, float] = defaultdict(float)
    for segment in history.segments:
        address = number(segment.get("address"))
        for block in _blocks(segment):
            at = number(block.get("address")) or address
            if block.get("state") == LIVE and at not in seen and block.get("frames"):
                sums[_allocated_by(block)] += _requested(block) / GIB
            address += number(block.get("size"))
    return dict(sums)


def _allocated_by(entry: Mapping[str, Any]) -> str:
    """Returns the user's annotation of the allocation, or the innermost Python function outside the framework; else
    `backward` under autograd, the innermost frame, or NO_STACK."""
    if isinstance(entry.get("user_metadata"), str) and entry["user_metadata"]:
        return short(entry["user_metadata"])
    frames = [frame for frame in entry.get("frames") or [] if isinstance(frame, dict)]
    for frame in frames:
        file = str(frame.get("filename", ""))
        if file.endswith(".py") and not any(part in file for part in FRAMEWORK):
            return short(f"{frame.get('name')} ({file.rsplit('/', 1)[-1]}:{frame.get('line')})")
    if any(AUTOGRAD in str(frame.get("name", "")) for frame in frames):
        return "backward"
    return short(str(frames[0].get("name"))) if frames else NO_STACK


def _retries(entries: Sequence[Mapping[str, Any]], action: Ints) -> int:
    """Returns how many times segments were freed and another one was allocated directly after; emptying the cache on
    purpose does not count."""
    again = np.flatnonzero((action[1:] == RESERVED) & (action[:-1] == GIVEN_BACK))
    return sum(not _emptied(entries[row]) for row in again.tolist())


def _emptied(entry: Mapping[str, Any]) -> bool:
    return any(EMPTIED in str(frame.get("name", "")) for frame in entry.get("frames") or [] if isinstance(frame, dict))


def _ranges(annotations: Sequence[Mapping[str, Any]], end_us: float) -> Spans:
    """Returns annotations, which are recorded as starts and ends, as ranges; an end belongs to the latest start of its
    name."""
    names: dict[str, int] = {}
    rows: list[list[float]] = []
    still_open: dict[str, list[int]] = defaultdict(list)
    for one in sorted(annotations, key=lambda a: number(a.get("time_us"))):
        name, time = str(one.get("name", "")), float(number(one.get("time_us")))
        if one.get("stage") == "START":
            still_open[name].append(len(rows))
            rows.append([time, end_us, names.setdefault(name, len(names))])
        elif still_open[name]:
            rows[still_open[name].pop()][1] = time
    start, end, code = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    none = np.zeros(len(rows), dtype=np.int64)
    return Spans(
        start_us=start,
        end_us=np.maximum(start, end),
        name=code.astype(np.int64),
        lane=none,
        correlation=none - 1,
        names=tuple(names),
    )
