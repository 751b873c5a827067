"""Lists what the hosts of a job do in a training step, in order: launches, syncs, Python, pauses.

All ranks run the same instructions and differ in how long each takes: `us` has one figure a rank, microseconds. A
Machine runs a program as hardware would: a kernel starts when it has been launched, its stream is free and what it
depends on is done; a collective ends on all ranks at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tests.analyzers.moe_steps.recording import Recording

Times = tuple[float, ...]  # one value per rank
COMPUTE, EXPERT, DATA, PIPELINE, COPY_OUT, COPY_IN = range(6)  # streams
STREAMS = 6
MAIN, AUTOGRAD = 100, 101  # host threads; they take turns


class Machine:
    """The clocks of a job's hosts and streams, all at 0."""

    def __init__(self, ranks: int, recordings: Sequence[Recording] | None = None) -> None:
        self.ranks = range(ranks)
        self.host = [0.0] * ranks
        self.free = [[0.0] * STREAMS for _ in self.ranks]
        self.recordings = recordings

    def run(self, steps: Sequence[Sequence[Instruction]]) -> list[float]:
        """Returns when the slowest rank's host had finished each step."""
        ends = []
        for number, step in enumerate(steps):
            started = list(self.host)
            for one in step:
                one.run(self)
            for rank, recording in enumerate(self.recordings or ()):
                recording.range(f"ProfilerStep#{number}", started[rank], self.host[rank], MAIN)
            ends.append(max(self.host))
        return ends


class Instruction(Protocol):
    def run(self, machine: Machine) -> None: ...


class Host(NamedTuple):
    """Work of the host. An event of this name and category shows it, or no event does."""

    us: Times
    name: str = ""
    category: str = ""
    thread: int = MAIN
    again: bool = False  # recompute: issues forward work a second time

    def run(self, machine: Machine) -> None:
        for rank in machine.ranks:
            started = machine.host[rank]
            machine.host[rank] += self.us[rank]
            if machine.recordings and self.name:
                machine.recordings[rank].host(self.category, self.name, started, machine.host[rank], self.thread)


class Allocate(NamedTuple):
    """cudaMalloc or cudaFree: the device becomes idle while the host is in the driver."""

    us: Times
    name: str
    thread: int = MAIN

    def run(self, machine: Machine) -> None:
        for rank in machine.ranks:
            started = machine.host[rank]
            machine.host[rank] = max(started, *machine.free[rank]) + self.us[rank]
            if machine.recordings:
                machine.recordings[rank].host("cuda_runtime", self.name, started, machine.host[rank], self.thread)


class Kernel(NamedTuple):
    """Launch of a kernel, which starts on its stream once the streams in `after` have finished their work so far."""

    name: str
    us: Times
    launch_us: Times
    stream: int = COMPUTE
    after: tuple[int, ...] = ()
    thread: int = MAIN
    category: str = "kernel"
    arguments: tuple[tuple[str, object], ...] = ()
    communication: bool = False
    collective: bool = False  # ends `us` after the last rank has started it, or later
    wait_us: float = 0.0  # waiting for a peer without a trace
    fusable: bool = False  # memory-bound, or too short to fill a device
    offload: bool = False
    again: bool = False
    in_graph: bool = False  # started by the launch before this one

    def run(self, machine: Machine) -> None:
        launched, starts = list(machine.host), list[float]()
        for rank in machine.ranks:
            free = machine.free[rank]
            if not self.in_graph:
                machine.host[rank] += self.launch_us[rank]
            ready = max([free[stream] for stream in self.after], default=0.0)
            starts.append(max(machine.host[rank], free[self.stream], ready))
        meet = max(starts) if self.collective else 0.0
        for rank, start in enumerate(starts):
            end = max(start, meet) + self.wait_us + self.us[rank]
            machine.free[rank][self.stream] = end
            if machine.recordings:
                machine.recordings[rank].launch(self, launched[rank], machine.host[rank], start, end)


class Sync(NamedTuple):
    """Wait of the host for streams, and for a pipeline peer without a trace. Without a name, no call shows it."""

    streams: tuple[int, ...]
    name: str = "cudaStreamSynchronize"
    thread: int = MAIN
    wait_us: float = 0.0
    around: str = ""  # the enclosing range
    again: bool = False

    def run(self, machine: Machine) -> None:
        for rank in machine.ranks:
            started = machine.host[rank]
            done = max(machine.free[rank][stream] for stream in self.streams)
            end = max(started + 1.0, done) + self.wait_us
            machine.host[rank] = end
            if machine.recordings:
                if self.name:
                    machine.recordings[rank].host("cuda_runtime", self.name, started, end, self.thread)
                if self.around:
                    machine.recordings[rank].range(self.around, started, end, self.thread)


class Open(NamedTuple):
    """Start of a range or an operator on a thread; Close ends the one opened last."""

    name: str
    category: str = "user_annotation"
    thread: int = MAIN
    again: bool = False

    def run(self, machine: Machine) -> None:
        for rank, recording in enumerate(machine.recordings or ()):
            recording.opened.append((self.category, self.name, machine.host[rank], self.thread))


class Close(NamedTuple):
    again: bool = False

    def run(self, machine: Machine) -> None:
        for rank, recording in enumerate(machine.recordings or ()):
            category, name, started, thread = recording.opened.pop()
            recording.host(category, name, started, machine.host[rank], thread)
