"""The events of one rank as a Kineto file holds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tests.analyzers.moe_steps.program import Kernel

PROCESS = 1
ALLOCATED_BYTES, BLOCKS = 1 << 20, 200
CALLS = {"gpu_memcpy": "cudaMemcpyAsync", "kernel": "cudaLaunchKernel"}


class Recording:
    """The trace events of one rank, to which a simulated `Machine` adds. `clock_us` is what this rank's clock shows
    when the job starts."""

    def __init__(
        self, *, rank: int, ranks: int, clock_us: float = 0.0, operators: bool = True, memory: bool = False
    ) -> None:
        self.rank, self.ranks, self.clock_us = rank, ranks, clock_us
        self.operators, self.memory = operators, memory
        self.events: list[dict[str, Any]] = []
        self.opened: list[tuple[str, str, float, int]] = []
        self._correlation = 0

    def host(self, category: str, name: str, started: float, end: float, thread: int) -> None:
        if self.operators or category != "cpu_op":
            self._add(category, name, started, end, thread, {})
        if self.memory and category == "cpu_op":
            self._allocated(started, thread)

    def range(self, name: str, started: float, end: float, thread: int) -> None:
        self._add("user_annotation", name, started, end, thread, {})

    def launch(self, kernel: Kernel, launched: float, returned: float, start: float, end: float) -> None:
        if not kernel.in_graph:
            self._correlation += 1
            self._add(
                "cuda_runtime", CALLS[kernel.category], launched, returned, kernel.thread, self._joined(kernel.stream)
            )
        if end > start:
            arguments = {**self._joined(kernel.stream), **dict(kernel.arguments)}
            self._add(kernel.category, kernel.name, start, end, kernel.stream, arguments)

    def _joined(self, stream: int) -> dict[str, Any]:
        return {"correlation": self._correlation, "device": self.rank, "stream": stream}

    def _add(self, category: str, name: str, start: float, end: float, thread: int, arguments: dict[str, Any]) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": PROCESS,
                "tid": thread,
                "ts": round(self.clock_us + start, 3),
                "dur": round(end - start, 3),
                "args": arguments,
            }
        )

    def _allocated(self, at: float, thread: int) -> None:
        """Records the allocation of a block. The total grows with the number of events, and after BLOCKS of them starts
        again."""
        held = ALLOCATED_BYTES * (1 + len(self.events) % BLOCKS)
        arguments = {
            "Device Type": 1,
            "Device Id": self.rank,
            "Addr": len(self.events),
            "Bytes": ALLOCATED_BYTES,
            "Total Allocated": held,
            "Total Reserved": 2 * ALLOCATED_BYTES * BLOCKS,
        }
        event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": PROCESS, "tid": thread}
        self.events.append({**event, "ts": round(self.clock_us + at, 3), "args": arguments})

    def write(self, folder: Path) -> None:
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "simulated"}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": max(self.ranks, 8)},
            "traceEvents": self.events,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank{self.rank}.pt.trace.json").write_bytes(msgspec.json.encode(document))
