"""Traces drawn by hand: a few events written down as a Kineto file, times in microseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GEMM = "ampere_sgemm_128x64_tn"
ALL_TO_ALL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
DISPATCH = "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)"
MAIN, BACKWARD, GLOO_THREAD = 100, 101, 200


class Drawing:
    """Events of one rank, in the order they are drawn."""

    def __init__(
        self, *, rank: int = 0, on_cpu: bool = False, world_size: int = 2, device_bytes: int | None = None
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device_bytes = device_bytes
        self.on_cpu = on_cpu
        self.events: list[dict[str, Any]] = []
        self.header: dict[str, Any] = {}  # further top-level keys of the trace
        self._correlation = 0

    def _add(self, category: str, name: str, start: float, end: float, thread: int | str, **args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": end - start}
        self.events.append({**event, "args": args})

    def step(self, number: int, start: float, end: float) -> Drawing:
        return self.range(f"ProfilerStep#{number}", start, end)

    def range(self, name: str, start: float, end: float, thread: int = MAIN) -> Drawing:
        self._add("user_annotation", name, start, end, thread)
        return self

    def operator(self, name: str, start: float, end: float, thread: int = MAIN, sequence: int | None = None) -> Drawing:
        """Draws a framework's operator; sequence: autograd's number, which links an operator to its backward node."""
        recorded = {} if sequence is None else {"Sequence number": sequence}
        self._add("cpu_op", name, start, end, thread, **recorded)
        return self

    def call(self, name: str, start: float, end: float, thread: int = MAIN, correlation: int = 0) -> Drawing:
        self._add("cuda_runtime", name, start, end, thread, correlation=correlation)
        return self

    def overhead(self, name: str, start: float, end: float) -> Drawing:
        return self.event("overhead", name, start, end, thread=0)

    def event(self, category: str, name: str, start: float, end: float, thread: int = MAIN) -> Drawing:
        """Draws any event of a host thread."""
        self._add(category, name, start, end, thread)
        return self

    def kernel(
        self,
        name: str,
        start: float,
        end: float,
        *,
        launched: float | None = None,
        launch_took: float = 2,
        stream: int = 7,
        thread: int = MAIN,
        category: str = "kernel",
        device: int = 0,
        **args: Any,
    ) -> Drawing:
        """Draws a device event; launched=None leaves it without a launch, as inside a graph whose launch was not
        seen."""
        self._correlation += 1
        if launched is not None:
            self.call("cudaLaunchKernel", launched, launched + launch_took, thread, self._correlation)
        place = {"device": device, "stream": stream, "correlation": self._correlation}
        self._add(category, name, start, end, stream, **place, **args)
        return self

    def copy(
        self,
        name: str,
        start: float,
        end: float,
        *,
        launched: float | None = None,
        launch_took: float = 2,
        stream: int = 9,
    ) -> Drawing:
        return self.kernel(
            name, start, end, launched=launched, launch_took=launch_took, stream=stream, category="gpu_memcpy"
        )

    def graph(
        self,
        kernels: Sequence[tuple[str, float, float]],
        *,
        launched: float,
        took: float = 10,
        name: str = "cudaGraphLaunch",
        stream: int = 7,
    ) -> Drawing:
        """Draws the kernels (name, start, end) of one graph: they share its launch."""
        self._correlation += 1
        self.call(name, launched, launched + took, MAIN, self._correlation)
        for kernel, start, end in kernels:
            place = {"device": 0, "stream": stream, "correlation": self._correlation}
            self._add("kernel", kernel, start, end, stream, **place)
        return self

    def memory(
        self,
        time: float,
        change: int,
        *,
        device: int | None = 0,
        thread: int = MAIN,
        name: str = "[memory]",
        address: int | None = None,
        allocated: int | None = None,
        reserved: int | None = None,
    ) -> Drawing:
        """Draws an allocation, or with a negative change a release, of the device's memory or (None) the host's."""
        given = {"Addr": address, "Total Allocated": allocated, "Total Reserved": reserved}
        where = {"Device Type": 0, "Device Id": -1} if device is None else {"Device Type": 1, "Device Id": device}
        args = {"Bytes": change, **where, **{key: value for key, value in given.items() if value is not None}}
        self.events.append({"ph": "i", "s": "t", "name": name, "pid": 1, "tid": thread, "ts": time, "args": args})
        return self

    def document(self) -> dict[str, Any]:
        device = {"id": 0, "name": "drawn", **({"totalGlobalMem": self.device_bytes} if self.device_bytes else {})}
        backend = "gloo" if self.on_cpu else "nccl"
        return {
            "schemaVersion": 1,
            "deviceProperties": [] if self.on_cpu else [device],
            "distributedInfo": {"backend": backend, "rank": self.rank, "world_size": self.world_size},
            **self.header,
            "traceEvents": self.events,
            "traceName": "drawn",
        }

    def write(self, folder: Path, name: str | None = None) -> Path:
        path = folder / (name or f"rank{self.rank}.pt.trace.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.document(), indent=1))
        return path
