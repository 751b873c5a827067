"""Plays a step: when the host issues each piece of work, and when the device runs it.

The host issues in order and never waits; a kernel starts when it was issued, its stream is free and, on the compute
stream, everything before it is done. The step ends when both streams are empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.engines.simulated.model import Op, Stream

CALL_US = 4.0  # a launch call's own duration
TO_DEVICE_US = 2.0  # from the call to the earliest start on the device


@dataclass(frozen=True, kw_only=True)
class Played:
    """An op in time, microseconds from the step's start. A pause has no kernel: device times are equal."""

    op: Op
    issued_us: float
    host_end_us: float
    start_us: float
    end_us: float


@dataclass(frozen=True, kw_only=True)
class Step:
    ops: tuple[Played, ...]
    duration_us: float


def play(ops: Sequence[Op]) -> Step:
    host_us = 0.0
    free = {Stream.COMPUTE: 0.0, Stream.SIDE: 0.0}
    played = []
    for op in ops:
        issued = host_us
        host_us += max(op.host_us, CALL_US)
        start = max(free[op.stream], issued + TO_DEVICE_US)
        end = start + op.device_us
        if op.kernel:
            free[op.stream] = end
        played.append(Played(op=op, issued_us=issued, host_end_us=host_us, start_us=start, end_us=end))
    return Step(ops=tuple(played), duration_us=max(host_us, *free.values()) + TO_DEVICE_US)
