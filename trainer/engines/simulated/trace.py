"""A played step as a Kineto trace: launches, kernels and ranges, as torch.profiler would have written them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from trainer.engines.simulated.model import Stream
from trainer.engines.simulated.play import CALL_US, Played, Step

Event = dict[str, Any]

HOST_PID, HOST_TID = 4242, 4242
STREAMS = {Stream.COMPUTE: 7, Stream.SIDE: 24}
BETWEEN_STEPS_US = 50.0


def write_trace(path: Path, step: Step, *, rank: int, world_size: int, steps: int, first: int) -> None:
    """`steps` copies of the step one after the other, numbered from `first`, gzipped JSON."""
    events: list[Event] = []
    start_us = 1000.0
    for number in range(first, first + steps):
        events += _step_events(step, start_us, number, first_id=len(events))
        start_us += step.duration_us + BETWEEN_STEPS_US
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "simulated"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        "traceEvents": events,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(document).encode(), compresslevel=3, mtime=0))


def _step_events(step: Step, start_us: float, number: int, *, first_id: int) -> Iterator[Event]:
    yield _range(f"ProfilerStep#{number}", start_us, step.duration_us)
    yield _range("step", start_us, step.duration_us)
    yield from _ranges(step.ops, start_us, depth=0)
    for index, played in enumerate(step.ops):
        if played.op.kernel:
            yield _call(played, start_us, first_id + index)
            yield _kernel(played, start_us, first_id + index)


def _ranges(ops: Sequence[Played], start_us: float, *, depth: int) -> Iterator[Event]:
    """One event for each run of neighbours inside the same range, nested by depth."""
    for name, run in groupby(ops, key=lambda p: p.op.ranges[depth] if len(p.op.ranges) > depth else None):
        inside = list(run)
        if name is None:
            continue
        begin, end = inside[0].issued_us, inside[-1].host_end_us
        yield _range(name, start_us + begin, end - begin)
        yield from _ranges(inside, start_us, depth=depth + 1)


def _range(name: str, ts: float, dur: float) -> Event:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": name,
        "pid": HOST_PID,
        "tid": HOST_TID,
        "ts": ts,
        "dur": dur,
    }


def _call(played: Played, start_us: float, correlation: int) -> Event:
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": HOST_PID,
        "tid": HOST_TID,
        "ts": start_us + played.issued_us,
        "dur": CALL_US,
        "args": {"correlation": correlation},
    }


def _kernel(played: Played, start_us: float, correlation: int) -> Event:
    arguments: Event = {"device": 0, "stream": STREAMS[played.op.stream], "correlation": correlation}
    if played.op.group:
        arguments["Process Group Description"] = played.op.group
    return {
        "ph": "X",
        "cat": "kernel",
        "name": played.op.kernel,
        "pid": 0,
        "tid": STREAMS[played.op.stream],
        "ts": start_us + played.start_us,
        "dur": played.end_us - played.start_us,
        "args": arguments,
    }
