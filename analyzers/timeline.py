"""One rank's events as columns: every reader returns this form, every analysis takes it.

Times are microseconds (float64) from `origin_us`, the trace's own clock at its first event. A *lane* is the device
stream or the host thread of an event. One timeline is one device of one process, or one rank on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzers.diagnosis import Dropped
from analyzers.intervals import Bools, Floats, Intervals, union
from analyzers.repeats import ONCE, Repeats

Ints = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int8]
NO_CORRELATION = -1
NO_LANE = -1
NO_TOTAL = -1


class Activity(IntEnum):
    """The type of a device event, regardless of its name."""

    KERNEL = 0
    COPY = 1  # memcpy and memset
    GRAPH = 2  # one launch of a CUDA graph whose kernels were not recorded


@dataclass(frozen=True, kw_only=True, eq=False)
class Spans:
    """N events. start_us, end_us: float64[N]; name: an index into `names`, lane: both int32 or int64[N]."""

    start_us: Floats
    end_us: Floats
    name: Ints
    lane: Ints
    # int64[N]: joins a host call to the device events it launched, and a forward operator to its backward node
    # (autograd's sequence number); NO_CORRELATION if unknown
    correlation: Ints
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_us)

    def take(self, chosen: Bools | Ints) -> Spans:
        """Returns the chosen events, by mask or by index."""
        return replace(
            self,
            start_us=self.start_us[chosen],
            end_us=self.end_us[chosen],
            name=self.name[chosen],
            lane=self.lane[chosen],
            correlation=self.correlation[chosen],
        )

    def unlinked(self, *, of: Ints, but: Ints) -> Spans:
        """Returns the same calls without the correlation ids that are in `of` (those of another device) and not in
        `but` (this device's)."""
        if not len(of):
            return self
        elsewhere = np.isin(self.correlation, of) & ~np.isin(self.correlation, but)
        return replace(self, correlation=np.where(elsewhere, NO_CORRELATION, self.correlation))

    def covered(self, chosen: Bools | None = None) -> Intervals:
        """Returns the time covered by the chosen events (all, if not given)."""
        start, end = self.start_us, self.end_us
        return union(start, end) if chosen is None else union(start[chosen], end[chosen])

    def code(self, of: Callable[[str], int]) -> Ints:
        """Returns int64[N]: the value of `of` for each event's name, evaluated once per name."""
        return look_up(self.names, self.name, of)

    def where(self, says: Callable[[str], bool]) -> Bools:
        """Returns bool[N]: the events whose name satisfies `says`."""
        return _evaluated(self.names, self.name, says, np.dtype(np.bool_))


@dataclass(frozen=True, kw_only=True)
class Message:
    """NCCL's arguments of a communication; fields are empty or None if missing."""

    group: str = ""  # name and ranks of the process group: the same text on all of its ranks
    group_ranks: tuple[int, ...] = ()  # ranks of the group, if the arguments list them
    collective: str = ""
    group_size: int | None = None
    size_bytes: int | None = None  # size of the larger of input and output
    dtype: str = ""  # type of the elements, as torch names scalar types
    # the sending and the receiving rank of a send or receive; None is the rank itself
    peers: tuple[int | None, int | None] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceEvents:
    """M events on the device.

    activity: int8[M], an `Activity`; group: int64[M], an index into the names of "<process group's
    description>:<collective>" from NCCL's arguments, -1 if there are none; message: int64[M], an index into the
    timeline's messages or -1.
    """

    spans: Spans
    activity: npt.NDArray[np.int8]
    group: Ints
    message: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryEvents:
    """K allocations and releases of one device's memory, in order of time.

    time_us: float64[K]; lane: int[K], the host thread, NO_LANE if unknown; address: int64[K], -1 if unknown;
    change_bytes: int64[K], negative for releases; allocated_bytes, reserved_bytes: int64[K], the allocator's totals
    afterwards, NO_TOTAL if the trace does not record them.
    """

    source: str  # memory_events | nsys
    time_us: Floats
    lane: Ints
    address: Ints
    change_bytes: Ints
    allocated_bytes: Ints
    reserved_bytes: Ints
    retries: int | None = None  # counted by the reader, if the trace records failed allocations
    refused: int = 0  # allocations that failed even after a retry

    def __len__(self) -> int:
        return len(self.time_us)


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """One rank's events.

    `device_index` is None for a rank that computes on CPUs: then `device` is empty, and the operators on host threads
    are its work.
    """

    path: str
    format: str
    rank: int | None
    device_index: int | None
    origin_us: float
    device: DeviceEvents
    calls: Spans  # CUDA / HIP runtime and driver calls; lane = host thread
    ops: Spans  # framework operators; lane = host thread
    ranges: Spans  # annotations: record_function, NVTX; lane = host thread
    # overhead of profiler and driver; its lanes are not used, since Kineto does not record threads for it
    overhead: Spans = field(default_factory=lambda: no_spans())
    group_sizes: Mapping[str, int] = field(default_factory=dict)  # number of ranks by the process group's description
    world_size: int | None = None  # number of ranks of the job
    messages: tuple[Message, ...] = ()
    # number of the stream or thread, as the profiler shows it
    lane_names: Mapping[int, str] = field(default_factory=dict)
    memory: MemoryEvents | None = None
    memory_limit_bytes: int | None = None  # all of the device's memory
    compute_capability: tuple[int, int] | None = None
    simulated: bool = False  # the trace says that a simulation wrote it
    microbatches: int | None = None  # micro batches of a step, and how many of them the trace contains
    microbatches_traced: int | None = None
    repeats: Repeats = ONCE  # parts of the trace that count several times
    dropped: tuple[Dropped, ...] = ()
    warnings: tuple[str, ...] = ()


def look_up(names: Sequence[str], column: Ints, of: Callable[[str], int]) -> Ints:
    """Returns int64[N]: the value of `of` for each name in a column of codes (integers[N]), evaluated once per name in
    use."""
    return _evaluated(names, column, of, np.dtype(np.int64))


def in_use(count: int, column: Ints) -> Ints:
    """Returns int64[K]: the codes among 0..count-1 that occur in a column (integers[N]), ascending, without a sort."""
    seen = np.zeros(count, dtype=bool)
    seen[column] = True
    return np.flatnonzero(seen)


def _evaluated(names: Sequence[str], column: Ints, of: Callable[[str], int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    table = np.zeros(len(names), dtype=dtype)
    for code in in_use(len(names), column).tolist():
        table[code] = of(names[code])
    return table[column]


def joined(parts: Sequence[Spans]) -> Spans:
    """Returns the events of several Spans that share their names."""
    columns: dict[str, Any] = {
        column: np.concatenate([getattr(part, column) for part in parts])
        for column in ("start_us", "end_us", "name", "lane", "correlation")
    }
    return replace(parts[0], **columns)


def no_spans(names: tuple[str, ...] = ()) -> Spans:
    none = np.empty(0, dtype=np.int64)
    return Spans(start_us=np.empty(0), end_us=np.empty(0), name=none, lane=none, correlation=none, names=names)
