"""Reads the driver's allocations and releases from an Nsight export recorded with --cuda-memory-usage=true.

Their sizes are those of cudaMalloc and cudaFree: with a caching allocator, its reserved memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.intervals import Bools
from analyzers.readers.nsys_export import Export
from analyzers.readers.nsys_processes import PROCESS_SHIFT
from analyzers.readers.nsys_rows import CALLS
from analyzers.timeline import NO_LANE, NO_TOTAL, Ints, MemoryEvents, Spans

TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
COLUMNS = ("start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType", "correlationId")
ON_DEVICE = (2, 3, 5)  # ENUM_CUDA_MEM_KIND: device, array, static; the rest is the host's or may be
RELEASED = 1  # ENUM_CUDA_DEV_MEM_EVENT_OPER: 0 allocated, 1 released
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY
GPUS = "TARGET_INFO_GPU"


@dataclass(frozen=True, kw_only=True, eq=False)
class DriverMemory:
    """K allocations and releases of all processes: times in nanoseconds as recorded, sizes in bytes.

    failed: the process of each allocation that failed.
    """

    start: Ints
    process: Ints
    device: Ints  # device number as its process counts
    address: Ints
    change_bytes: Ints
    correlation: Ints
    failed: Ints

    def of_device(self, process: int, number: int, calls: Spans, origin_ns: int) -> MemoryEvents | None:
        """Returns the events of one device of a process; `calls` give their threads. None if there are none."""
        mine = (self.process == process) & (self.device == number)
        if not mine.any():
            return None
        order = np.flatnonzero(mine)
        order = order[np.lexsort((self.address[order], self.change_bytes[order], self.start[order]))]
        unknown = np.broadcast_to(np.int64(NO_TOTAL), len(order))
        return MemoryEvents(
            source="nsys",
            time_us=(self.start[order] - origin_ns) / 1000,
            lane=_lanes(self.correlation[order], calls),
            address=self.address[order],
            change_bytes=self.change_bytes[order],
            allocated_bytes=unknown,
            reserved_bytes=unknown,
            retries=int(np.count_nonzero(self.failed == process)),
        )


def driver_memory(export: Export) -> DriverMemory:
    """Returns every allocation and release on devices; empty if they were not recorded."""
    start, pid, device, address, size, kind, operation, correlation = export.integers(TABLE, COLUMNS)
    good: Bools = np.ones(len(start), dtype=bool)
    if export.has(TABLE, "memKind"):
        good = np.isin(kind, ON_DEVICE)
    good &= size > 0
    (failed,) = export.integers(CALLS, ("globalTid",), _failing(export)) if len(start) else (start,)
    return DriverMemory(
        start=start[good],
        process=pid[good] >> PROCESS_SHIFT,
        device=device[good],
        address=address[good],
        change_bytes=np.where(operation[good] == RELEASED, -size[good], size[good]),
        correlation=correlation[good],
        failed=failed >> PROCESS_SHIFT,
    )


def _failing(export: Export) -> str:
    return f"returnValue = {OUT_OF_MEMORY}" if export.has(CALLS, "returnValue") else "0"


def _lanes(correlation: Ints, calls: Spans) -> Ints:
    """Returns int64[K]: the thread of the call with each correlation, NO_LANE if it is not known."""
    order = np.argsort(calls.correlation, kind="stable")
    if not len(order):
        return np.full(len(correlation), NO_LANE, dtype=np.int64)
    at = order[np.minimum(np.searchsorted(calls.correlation[order], correlation), len(order) - 1)]
    known = (correlation > 0) & (calls.correlation[at] == correlation)
    return np.where(known, calls.lane[at], NO_LANE)


def memory_sizes(export: Export) -> dict[int, int]:
    """Returns {number of the GPU in its machine: bytes of its memory}."""
    number, size = export.integers(GPUS, ("id", "totalMemory"))
    return {gpu: total for gpu, total in zip(number.tolist(), size.tolist(), strict=True) if total > 0}


def compute_capabilities(export: Export) -> dict[int, tuple[int, int]]:
    """Returns {number of the GPU in its machine: its compute capability}."""
    columns = export.integers(GPUS, ("id", "computeMajor", "computeMinor"))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {gpu: (major, minor) for gpu, major, minor in rows if major > 0}
