"""Simulates operations: when the host launches each, and when the device runs it.

The host launches in order and waits only where an operation synchronises. Each stream runs its operations in the order
of their launches; an operation starts when it is launched, its stream is free and all it waits for is done.
Communication concurrent with compute takes SMs from it and is slowed by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.engines.simulated.ops import Op, Stream

TO_DEVICE_US = 3.0  # time from a launch to the earliest start on the device
ENDLESS = float("inf")


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The speed of a host and its streams.

    launch_us: time of a launch; sync_us: from the end of a wait to the next launch; contention: compute lost per share
    of SMs that concurrent communication occupies; slowed: factor on the time of communication that is
    concurrent with compute.
    """

    launch_us: float
    sync_us: float
    contention: float = 1.0
    slowed: float = 1.0


@dataclass(frozen=True, kw_only=True)
class OpTimes:
    """Times of operations in microseconds from the host's start: end of the launch, start and end on the device."""

    launched_us: list[float]
    start_us: list[float]
    end_us: list[float]

    @property
    def host_end_us(self) -> float:
        return self.launched_us[-1] if self.launched_us else 0.0

    @property
    def until_us(self) -> float:
        """Returns when the last operation and the last launch are done."""
        return max(max(self.end_us, default=0.0), self.host_end_us)


def simulate(ops: Sequence[Op], pace: Pace) -> OpTimes:
    """Simulates operations whose `after` are indices into the list; all streams are free at the start."""
    chained = all(op.after == ((place - 1,) if place else ()) for place, op in enumerate(ops))
    return _in_a_row(ops, pace) if chained else _Simulator(ops, pace).run()


def _in_a_row(ops: Sequence[Op], pace: Pace) -> OpTimes:
    launched, starts, ends = list[float](), list[float](), list[float]()
    host = end = 0.0
    for op in ops:
        host += op.launches * pace.launch_us
        launched.append(host)
        start = max(end, host + TO_DEVICE_US)
        end = start + op.us
        starts.append(start)
        ends.append(end)
        if op.sync:
            host = max(host, end) + pace.sync_us
    return OpTimes(launched_us=launched, start_us=starts, end_us=ends)


class _Simulator:
    """Simulates operations event by event: time advances from one start or end to the next, and between two events
    every running operation has a constant speed."""

    def __init__(self, ops: Sequence[Op], pace: Pace) -> None:
        self.ops, self.pace = ops, pace
        count = len(ops)
        self.launched, self.start, self.end = ([ENDLESS] * count for _ in range(3))
        self.queues: dict[Stream, list[int]] = {}
        for place in range(count - 1, -1, -1):
            self.queues.setdefault(ops[place].stream, []).append(place)
        self.left: dict[int, float] = {}  # microseconds left of each running operation, at its speed alone
        self.host, self.next = 0.0, 0

    def run(self) -> OpTimes:
        now = 0.0
        self._launch()
        for _ in range(2 * len(self.ops) + 1):
            speeds = self._speeds()
            ending = min(
                ((now + left / speeds[place], place) for place, left in self.left.items()), default=(ENDLESS, -1)
            )
            starting = min(self._ready(), default=(ENDLESS, -1))
            at = min(ending[0], max(starting[0], now))
            if at == ENDLESS:
                break
            for place in self.left:
                self.left[place] -= (at - now) * speeds[place]
            now = at
            if ending[0] <= starting[0]:
                self._finish(ending[1], now)
            else:
                self._begin(starting[1], now)
        return OpTimes(launched_us=self.launched, start_us=self.start, end_us=self.end)

    def _launch(self) -> None:
        """Launches operations until all are launched or the host must wait."""
        while self.next < len(self.ops):
            before = self.next - 1
            if before >= 0 and self.ops[before].sync:
                if self.end[before] == ENDLESS:
                    return
                self.host = max(self.host, self.end[before]) + self.pace.sync_us
            self.host += self.ops[self.next].launches * self.pace.launch_us
            self.launched[self.next] = self.host
            self.next += 1

    def _ready(self) -> list[tuple[float, int]]:
        """Returns the head of every idle stream that could start, with the time from which it could."""
        found = []
        for queue in self.queues.values():
            if not queue or queue[-1] in self.left:
                continue
            place = queue[-1]
            waits = [self.end[other] for other in self.ops[place].after or ()]
            at = max([self.launched[place] + TO_DEVICE_US, *waits])
            if at < ENDLESS:
                found.append((at, place))
        return found

    def _speeds(self) -> dict[int, float]:
        running = [self.ops[place] for place in self.left]
        taken = sum(op.sms for op in running if op.stream is not Stream.COMPUTE)
        computes = any(op.stream is Stream.COMPUTE for op in running)
        compute = max(0.1, 1 - self.pace.contention * taken)
        other = 1 / self.pace.slowed if computes else 1.0
        return {place: compute if self.ops[place].stream is Stream.COMPUTE else other for place in self.left}

    def _begin(self, place: int, now: float) -> None:
        self.start[place] = now
        self.left[place] = self.ops[place].us
        if not self.left[place]:
            self._finish(place, now)

    def _finish(self, place: int, now: float) -> None:
        self.end[place] = now
        del self.left[place]
        self.queues[self.ops[place].stream].pop()
        self._launch()
