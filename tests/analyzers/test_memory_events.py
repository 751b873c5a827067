"""The allocator's events as the readers return them: from every version of Kineto, and Nsight's driver allocations."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from analyzers.readers import read
from analyzers.timeline import NO_LANE, NO_TOTAL
from tests.analyzers.drawing import BACKWARD, GEMM, Drawing
from tests.places import TRACES, WITHOUT_SHARED

PROCESS = 5 << 24


def test_changes_of_the_devices_memory_become_columns_in_order_of_time(tmp_path: Path) -> None:
    drawing = Drawing().kernel(GEMM, 10, 20, launched=5)
    drawing.memory(30, -512, address=7, allocated=1024, reserved=4096)
    drawing.memory(20, 512, address=7, allocated=1536, reserved=4096, thread=BACKWARD)
    drawing.memory(25, 64, address=9, allocated=64, reserved=0, device=None)
    (timeline,) = read(drawing.write(tmp_path))
    memory = timeline.memory
    assert memory is not None
    assert memory.time_us.tolist() == [15, 25]
    assert memory.change_bytes.tolist() == [512, -512]
    assert memory.allocated_bytes.tolist() == [1536, 1024]
    assert memory.reserved_bytes.tolist() == [4096, 4096]
    assert memory.lane[0] != memory.lane[1] == timeline.calls.lane[0]


def test_old_traces_tell_changes_only(tmp_path: Path) -> None:
    drawing = Drawing().kernel(GEMM, 0, 20).memory(5, 512).memory(9, -512)
    (timeline,) = read(drawing.write(tmp_path))
    assert timeline.memory is not None
    assert timeline.memory.allocated_bytes.tolist() == [NO_TOTAL, NO_TOTAL]


def test_memory_of_other_devices_is_theirs(tmp_path: Path) -> None:
    drawing = Drawing().kernel(GEMM, 0, 20).kernel(GEMM, 0, 20, device=1)
    drawing.memory(5, 512).memory(6, 256, device=1).memory(7, 128, device=1)
    first, second = read(drawing.write(tmp_path))
    assert first.memory is not None
    assert second.memory is not None
    assert (first.memory.change_bytes.tolist(), second.memory.change_bytes.tolist()) == ([512], [256, 128])


def test_allocations_refused_are_counted(tmp_path: Path) -> None:
    drawing = Drawing().kernel(GEMM, 0, 20).memory(5, 512, name="[OutOfMemory]")
    (timeline,) = read(drawing.write(tmp_path))
    assert timeline.memory is not None
    assert (len(timeline.memory), timeline.memory.refused) == (0, 1)


def test_figures_of_the_device_are_in_the_header(tmp_path: Path) -> None:
    (timeline,) = read(Drawing(device_bytes=80 << 30).kernel(GEMM, 0, 20).write(tmp_path))
    assert timeline.memory_limit_bytes == 80 << 30


def test_driver_allocations_of_an_nsight_export_find_their_thread_and_device(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    tables: dict[str, list[tuple[object, ...]]] = {
        "StringIds (id, value)": [(1, "gemm"), (2, "cudaMalloc_v3020")],
        "CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, shortName)": [
            (1000, 9000, 0, 7, 1, PROCESS, 1)
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId, returnValue)": [
            (0, 2000, PROCESS | 3, 2, 2, 0),
            (2500, 2600, PROCESS | 3, 5, 2, 2),
        ],
        "TARGET_INFO_GPU (id, totalMemory)": [(0, 24 << 30)],
        "CUDA_GPU_MEMORY_USAGE_EVENTS (start, globalPid, deviceId, address, bytes, memKind, memoryOperationType, "
        "correlationId)": [
            (5000, PROCESS, 0, 70, 1 << 30, 2, 1, 0),
            (1000, PROCESS, 0, 70, 1 << 30, 2, 0, 2),
            (1500, PROCESS, 0, 80, 4096, 1, 0, 3),
            (1600, PROCESS, 1, 90, 4096, 2, 0, 4),
        ],
    }
    connection = sqlite3.connect(path)
    for table, rows in tables.items():
        connection.execute(f"CREATE TABLE {table}")
        connection.executemany(
            f"INSERT INTO {table.split()[0]} VALUES ({', '.join('?' * len(rows[0]))})",
            rows,
        )
    connection.commit()
    connection.close()
    (timeline,) = read(path)
    memory = timeline.memory
    assert memory is not None
    assert memory.time_us.tolist() == [1, 5]
    assert memory.change_bytes.tolist() == [1 << 30, -(1 << 30)]
    assert memory.lane.tolist() == [PROCESS | 3, NO_LANE]
    assert (memory.retries, timeline.memory_limit_bytes) == (1, 24 << 30)


@pytest.mark.parametrize("name", ["qwen05b_h100", "bert_small_h100", "resnet50_w4"])
def test_every_event_of_real_traces_is_there(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(WITHOUT_SHARED)
    document = json.loads(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"), strict=False)
    given = [
        (event["ts"], event["args"])
        for event in document["traceEvents"]
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 1
    ]
    (timeline,) = read(path)
    memory = timeline.memory
    assert memory is not None
    assert len(memory) == len(given)
    assert memory.change_bytes.sum() == sum(arguments["Bytes"] for _, arguments in given)
    assert memory.allocated_bytes.max() == max(arguments.get("Total Allocated", NO_TOTAL) for _, arguments in given)
    assert (np.diff(memory.time_us) >= 0).all()
