"""Recorded steps of a rank as a Kineto trace: launches, kernels and ranges, as torch.profiler would have written them.

What repeats is written once: `repeated` names windows of device time and how many of themselves they stand for,
`microbatches` and `microbatches_traced` how many of a step's micro batches are there.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from trainer.engines.simulated.kernels import GROUPS, KERNELS
from trainer.engines.simulated.ops import Stream
from trainer.engines.simulated.recording import Event, Recording

HOST = 4242
FIRST_US, BETWEEN_STEPS_US = 1000.0, 50.0
CALL_US = 4.0
STREAMS = {stream: 7 + 4 * stream for stream in Stream}
KERNEL = (
    '{"ph":"X","cat":"kernel","name":%s,"pid":0,"tid":%d,"args":{"device":0,"stream":%d%s,"correlation":%%d},'
    '"ts":%%.3f,"dur":%%.3f}'
)
CALL = (
    f'{{"ph":"X","cat":"cuda_runtime","name":"%s","pid":{HOST},"tid":{HOST},"args":{{"correlation":%d}},'
    '"ts":%.3f,"dur":%.3f}'
)
RANGE = f'{{"ph":"X","cat":"user_annotation","name":"%s","pid":{HOST},"tid":{HOST},"ts":%.3f,"dur":%.3f}}'


def write_trace(path: Path, steps: Sequence[Recording], *, rank: int, world_size: int, first: int, gpu: str) -> None:
    """The steps one after the other, numbered from `first`, gzipped JSON."""
    lines: list[str] = []
    repeated = []
    start_us, correlation = FIRST_US, 1
    for number, step in enumerate(steps, first):
        lines += _step(step, start_us, number, correlation)
        correlation += len(step.events)
        if step.repeated:
            one = step.repeated
            window = {"start_us": one.start_us + start_us, "end_us": one.end_us + start_us, "times": one.times}
            repeated.append(window)
        start_us += step.duration_us + BETWEEN_STEPS_US
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": f"simulated {gpu}"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        "microbatches": steps[0].microbatches,
        "microbatches_traced": steps[0].recorded,
        "repeated": repeated,
    }
    text = msgspec.json.encode(head)[:-1] + b',"traceEvents":[' + ",\n".join(lines).encode() + b"]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, compresslevel=1, mtime=0))


def _step(step: Recording, start_us: float, number: int, first_id: int) -> Iterator[str]:
    for name in (f"ProfilerStep#{number}", "step"):
        yield RANGE % (name, start_us, step.duration_us)
    called = _calls(step.events)
    yield from _ranges(step.events, called, start_us)
    for index, (event, at) in enumerate(zip(step.events, called, strict=True)):
        yield CALL % ("cudaLaunchKernel", first_id + index, start_us + at - CALL_US, CALL_US)
        kernel = _template(event.op.kernel, event.op.stream)
        yield kernel % (first_id + index, start_us + event.start_us, event.end_us - event.start_us)
        if event.op.sync:
            length = max(CALL_US, event.end_us - at)
            yield CALL % ("cudaStreamSynchronize", 0, start_us + at, length)


def _calls(events: Sequence[Event]) -> list[float]:
    """When each launch came back: one after the other, each before its kernel starts."""
    found, free = [], 0.0
    for event in events:
        at = max(free + CALL_US, event.called_us)
        found.append(at)
        free = max(at, event.end_us) if event.op.sync else at
    return found


_TEMPLATES: dict[tuple[str, Stream], str] = {}


def _template(kernel: str, stream: Stream) -> str:
    if (kernel, stream) not in _TEMPLATES:
        group = f',"Process Group Description":"{GROUPS[stream]}"' if stream in GROUPS else ""
        name = msgspec.json.encode(KERNELS[kernel]).decode().replace("%", "%%")
        _TEMPLATES[kernel, stream] = KERNEL % (name, STREAMS[stream], STREAMS[stream], group)
    return _TEMPLATES[kernel, stream]


def _ranges(events: Sequence[Event], called: Sequence[float], start_us: float) -> Iterator[str]:
    """One event for each run of neighbours inside the same range, nested by depth."""
    yield from _nested(list(zip(events, called, strict=True)), start_us, 0)


def _nested(events: Sequence[tuple[Event, float]], start_us: float, depth: int) -> Iterator[str]:
    def name_of(one: tuple[Event, float]) -> str | None:
        ranges = one[0].op.ranges
        return ranges[depth] if len(ranges) > depth else None

    for name, run in groupby(events, key=name_of):
        if name is None:
            continue
        inside = list(run)
        begin = inside[0][1] - CALL_US
        yield RANGE % (name, start_us + begin, inside[-1][1] - begin + 0.5)
        yield from _nested(inside, start_us, depth + 1)
