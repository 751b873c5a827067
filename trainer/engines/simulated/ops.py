"""Operations of a step: the stream that each runs on, its time on the device, and its launch cost on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec
from msgspec.structs import replace


class Stream(IntEnum):
    """One queue each; queues run beside each other."""

    COMPUTE = 0
    EP = 1
    TP = 2
    CP = 3
    DP = 4
    COPY = 5
    PP = 6
    NORM = 7


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, or a few that follow each other.

    kernel: a name of kernels.py; us: device time when nothing runs beside it; launches: calls of the host for it; sms:
    share of the SMs a communication kernel occupies; after: places in the list of what it waits for, None the one
    before; sync: the host waits for its end; ranges: names around it, outermost first; gb: sent by a rank.
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
class Beside:
    """Two chains that run beside each other; what follows waits for both. The first is launched first."""

    first: Sequence[Op]
    second: Sequence[Op]


Segment = Sequence[Op | Beside]


class Work:
    """A list of operations as it grows: segments become chains, each after the operations it waits for."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def chain(self, segment: Segment, after: tuple[int, ...]) -> tuple[int, ...]:
        """Adds operations that follow each other, the first after `after`; gives what to wait for next."""
        for item in segment:
            if isinstance(item, Beside):
                after = self.chain(item.first, after) + self.chain(item.second, after)
            else:
                self.ops.append(replace(item, after=after))
                after = (len(self.ops) - 1,)
        return after


def inside(segment: Segment, *ranges: str) -> list[Op | Beside]:
    """The same within more ranges."""
    return [
        Beside(within(item.first, *ranges), within(item.second, *ranges))
        if isinstance(item, Beside)
        else replace(item, ranges=(*ranges, *item.ranges))
        for item in segment
    ]


def within(ops: Sequence[Op], *ranges: str) -> list[Op]:
    """A plain chain within more ranges."""
    return [replace(op, ranges=(*ranges, *op.ranges)) for op in ops]
