"""Operations of a step: their stream, time on the device, and launch cost on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec
from msgspec.structs import replace


class Stream(IntEnum):
    """The streams of a device: one queue each, concurrent with each other."""

    COMPUTE = 0
    EP = 1
    TP = 2
    CP = 3
    DP = 4
    COPY = 5
    PP = 6
    NORM = 7


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, or a few in a row.

    kernel: a name of kernels.py; us: device time without concurrent work; launches: host calls that launch it; sms: the
    share of the SMs that a communication kernel occupies; after: indices of the operations that it waits for, None: the
    previous one; sync: the host waits for its end; ranges: names of the ranges around it, outermost first; gb: sent by
    a rank.
    """

    kernel: str
    us: float
    launches: float = 1.0
    stream: Stream = Stream.COMPUTE
    sms: float = 0.0
    after: tuple[int, ...] | None = None
    sync: bool = False
    ranges: tuple[str, ...] = ()
    gb: float = 0.0


@dataclass(frozen=True, slots=True)
class Concurrent:
    """Two concurrent chains, the first launched first; the next operation waits for both."""

    first: Sequence[Op]
    second: Sequence[Op]


Segment = Sequence[Op | Concurrent]


class Work:
    """A growing list of operations. Segments are added as chains, each after the operations that it waits for."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def chain(self, segment: Segment, after: tuple[int, ...]) -> tuple[int, ...]:
        """Adds operations in a row, the first after `after`; returns the indices of the last ones, to wait for."""
        for item in segment:
            if isinstance(item, Concurrent):
                after = self.chain(item.first, after) + self.chain(item.second, after)
            else:
                self.ops.append(replace(item, after=after))
                after = (len(self.ops) - 1,)
        return after


def inside(segment: Segment, *ranges: str) -> list[Op | Concurrent]:
    """Returns the segment with additional profiler ranges around its operations."""
    return [
        Concurrent(within(item.first, *ranges), within(item.second, *ranges))
        if isinstance(item, Concurrent)
        else replace(item, ranges=(*ranges, *item.ranges))
        for item in segment
    ]


def within(ops: Sequence[Op], *ranges: str) -> list[Op]:
    """Returns the chain with additional profiler ranges around its operations."""
    return [replace(op, ranges=(*ranges, *op.ranges)) for op in ops]
