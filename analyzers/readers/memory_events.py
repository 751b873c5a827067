"""Reads the allocator's events in a Kineto trace: instants named [memory], recorded with profile_memory.

Each is one allocation or release; since torch 1.11 it has the address, and the allocator's totals afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from analyzers.readers.columns import Codes, Column
from analyzers.readers.json_events import Arguments, Event
from analyzers.timeline import NO_TOTAL, MemoryEvents

INSTANT = "i"
CHANGE = "[memory]"
REFUSED = "[OutOfMemory]"
CPU_TYPE = 0  # c10::DeviceType
ON_CPU = -1
FIGURES = ("address", "change_bytes", "allocated", "reserved", "device_type", "memory_of")
_figures = attrgetter(*FIGURES)


class MemoryColumns:
    """The columns of one file while it is read: memory of all devices, and the host's as device ON_CPU."""

    def __init__(self, lanes: Codes) -> None:
        self._lanes = lanes
        self._time, self._lane = Column("d"), Column("i")
        self._figures = [Column("q") for _ in FIGURES]
        self._refused: list[int] = []  # device of each failed allocation

    def add(self, events: Sequence[Event]) -> None:
        """Adds instants; skips those that are not the allocator's or lack a time or a size."""
        self._refused += [_device(e.args) for e in events if e.name == REFUSED and e.args is not None]
        changes = [
            e for e in events if e.name == CHANGE and e.args is not None and e.args.change_bytes and e.ts is not None
        ]
        if not changes:
            return
        lanes = self._lanes
        self._time.extend(np.array([e.ts for e in changes], dtype=np.float64))
        self._lane.extend_whole([lanes[e.pid, e.tid] for e in changes], missing=0)
        arguments = zip(*[_figures(e.args) for e in changes], strict=True)
        for column, values in zip(self._figures, arguments, strict=True):
            column.extend_whole(values, missing=NO_TOTAL)

    def of_device(self, index: int | None, origin_us: float) -> MemoryEvents | None:
        """Returns the events of a device, or of the host's memory if `index` is None; None if there are none."""
        device = ON_CPU if index is None else index
        address, change, allocated, reserved, kind, number = (column.array() for column in self._figures)
        mine = np.where(kind == CPU_TYPE, ON_CPU, number) == device
        refused = self._refused.count(device)
        if not mine.any() and not refused:
            return None
        time, lane = self._time.array()[mine] - origin_us, self._lane.array()[mine]
        address, change, allocated, reserved = (c[mine] for c in (address, change, allocated, reserved))
        # at equal times releases come first: the result must not depend on the file's order
        order = np.lexsort((allocated, address, change, time))
        return MemoryEvents(
            source="memory_events",
            time_us=time[order],
            lane=lane[order],
            address=address[order],
            change_bytes=change[order],
            allocated_bytes=allocated[order],
            reserved_bytes=reserved[order],
            refused=refused,
        )


def _device(arguments: Arguments) -> int:
    if arguments.device_type == CPU_TYPE or arguments.memory_of is None:
        return ON_CPU
    return arguments.memory_of
