"""Writes a recorded step of a rank as a Kineto trace: launches, kernels and ranges, as torch.profiler would.

Repeated parts are written once: `repeated` lists windows of device time and how often each counts; `microbatches` and
`microbatches_traced` are the numbers of micro batches in the step and in the trace. Steps are alike, so one is written.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from trainer.engines.simulated.kernels import GROUPS, KERNELS
from trainer.engines.simulated.ops import Op, Stream
from trainer.engines.simulated.recording import Block, PlacedBlock, Recording
from trainer.engines.simulated.routing import Floats
from trainer.engines.simulated.streams import TO_DEVICE_US, Pace

HOST = 4242
FIRST_US = 1000.0
CALL_US = 4.0
STREAMS = {stream: 7 + 4 * stream for stream in Stream}
LAUNCH = (
    f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":{HOST},"tid":{HOST},"args":{{"correlation":%d}},'
    f'"ts":%.3f,"dur":{CALL_US}}},\n'
)
SYNCHRONIZE = (
    f'{{"ph":"X","cat":"cuda_runtime","name":"cudaStreamSynchronize","pid":{HOST},"tid":{HOST},"args":{{}},'
    '"ts":%.3f,"dur":%.3f},\n'
)
RANGE = f'{{"ph":"X","cat":"user_annotation","name":"NAME","pid":{HOST},"tid":{HOST},"ts":%.3f,"dur":%.3f}},\n'


def write_trace(path: Path, step: Recording, *, rank: int, world_size: int, number: int, gpu: str) -> None:
    """Writes the step under its number as gzipped JSON."""
    repeated = []
    if step.repeated:
        one = step.repeated
        repeated.append({"start_us": one.start_us + FIRST_US, "end_us": one.end_us + FIRST_US, "times": one.times})
    head: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": f"simulated {gpu}"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        "microbatches": step.microbatches,
        "microbatches_traced": step.recorded,
        "repeated": repeated,
    }
    text = msgspec.json.encode(head)[:-1] + b',"traceEvents":[\n' + "".join(_step(step, number)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text[:-2] + b"]}", compresslevel=1, mtime=0))


def _step(step: Recording, number: int) -> Iterator[str]:
    for name in (f"ProfilerStep#{number}", "step"):
        yield RANGE.replace("NAME", name) % (FIRST_US, step.duration_us)
    texts: dict[int, _Text] = {}
    host, count, called = _Host(step.pace), 1, list[Floats]()
    for placed in step.placed:
        key = id(placed.block)
        if key not in texts:
            texts[key] = _Text(placed.block)
        called.append(host.launches(placed, texts[key]))
        yield texts[key].filled(placed, called[-1], count)
        count += len(called[-1])
    for name, begin, end in step.pauses:
        yield RANGE.replace("NAME", name) % (FIRST_US + begin, end - begin)
    for name, first, last in step.passes:
        begin = float(called[first][0]) - CALL_US
        yield RANGE.replace("NAME", name) % (FIRST_US + begin, float(called[last][-1]) - begin + 1.0)


class _Host:
    """Launches operations in order, as early as possible: it waits only where an operation synchronises."""

    def __init__(self, pace: Pace) -> None:
        self.pace, self.free = pace, 0.0

    def launches(self, placed: PlacedBlock, text: _Text) -> Floats:
        """Returns when each launch returned, µs; rounding never puts it after the start of its kernel."""
        found: Floats = self.free + np.cumsum(text.launches) * self.pace.launch_us
        for place in text.syncs.tolist():
            found[place + 1 :] += max(0.0, placed.end_us[place] - found[place]) + self.pace.sync_us
        last = len(found) - 1
        waits = text.syncs.size and text.syncs[-1] == last
        self.free = float(max(found[-1], placed.end_us[last]) + self.pace.sync_us if waits else found[-1])
        return np.minimum(found, placed.start_us - TO_DEVICE_US)


class _Text:
    """The JSON text of a block, with placeholders for its numbers."""

    def __init__(self, block: Block) -> None:
        self.launches = np.array([op.launches for op in block.ops])
        self.syncs = np.array([i for i, op in enumerate(block.ops) if op.sync], dtype=np.int64)
        self.ranges = list(_ranges(block.ops))
        self.first = np.array([first for _, first, _ in self.ranges], dtype=np.int64)
        self.last = np.array([last for _, _, last in self.ranges], dtype=np.int64)
        names = "".join(RANGE.replace("NAME", name) for name, _, _ in self.ranges)
        self.text = "".join(LAUNCH + _kernel(op) for op in block.ops) + SYNCHRONIZE * len(self.syncs) + names

    def filled(self, placed: PlacedBlock, called: Floats, first_id: int) -> str:
        count = len(called)
        ids = np.arange(first_id, first_id + count, dtype=np.float64)
        start, end = placed.start_us, placed.end_us
        events = np.stack((ids, called + (FIRST_US - CALL_US), ids, start + FIRST_US, end - start), axis=1)
        waited = called[self.syncs]
        syncs = np.stack((waited + FIRST_US, np.maximum(CALL_US, end[self.syncs] - waited)), axis=1)
        begin = called[self.first] - CALL_US
        ranges = np.stack((begin + FIRST_US, called[self.last] - begin + 0.5), axis=1)
        return self.text % tuple(np.concatenate((events.ravel(), syncs.ravel(), ranges.ravel())).tolist())


def _kernel(op: Op) -> str:
    stream = STREAMS[op.stream]
    group = f',"Process Group Description":"{GROUPS[op.stream]}"' if op.stream in GROUPS else ""
    name = msgspec.json.encode(KERNELS[op.kernel]).decode().replace("%", "%%")
    category = "gpu_memcpy" if op.stream is Stream.COPY else "kernel"
    return (
        f'{{"ph":"X","cat":"{category}","name":{name},"pid":0,"tid":{stream},"args":{{"device":0,"stream":{stream}{group},'
        '"correlation":%d},"ts":%.3f,"dur":%.3f},\n'
    )


def _ranges(ops: tuple[Op, ...], depth: int = 0, offset: int = 0) -> Iterator[tuple[str, int, int]]:
    """Yields (name, first index, last index) of each run of operations inside the same range, nested by depth."""
    place = offset
    for name, run in groupby(ops, key=lambda op: op.ranges[depth] if len(op.ranges) > depth else None):
        inside = tuple(run)
        if name is not None:
            yield name, place, place + len(inside) - 1
            yield from _ranges(inside, depth + 1, place)
        place += len(inside)
