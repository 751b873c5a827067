"""Nsight exports drawn by hand: tables of a few rows, times in microseconds, in a file of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

Value = int | float | str | bytes | None
Row = Mapping[str, Value]

PROCESS_A, PROCESS_B = (1 << 48) + (5 << 24), (1 << 48) + (6 << 24)
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"
PUSH_POP, START_END = 59, 60
GEMM, GATHER, LAUNCH, STEP, GRAPH_LAUNCH, MALLOC = 1, 2, 3, 4, 5, 6
STRINGS = {
    GEMM: "ampere_sgemm_128x64_tn",
    GATHER: "ncclDevKernel_AllGather_RING_LL(x)",
    LAUNCH: "cudaLaunchKernel_v7000",
    STEP: "step",
    GRAPH_LAUNCH: "cudaGraphLaunch_v10000",
    MALLOC: "cudaMalloc_v3020",
}


def write(path: Path, tables: Mapping[str, Sequence[Row]], strings: Mapping[int, Value] = STRINGS) -> Path:
    """Writes an export of these tables; a table's columns are those of its rows, and missing values are NULL."""
    with_strings = {"StringIds": [{"id": key, "value": text} for key, text in strings.items()], **tables}
    connection = sqlite3.connect(path)
    for name, rows in with_strings.items():
        columns = list(dict.fromkeys(column for row in rows for column in row)) or ["start"]
        connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        insert = f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})"
        connection.executemany(insert, [[row.get(column) for column in columns] for row in rows])
    connection.commit()
    connection.close()
    return path


def kernel(
    start: float, end: float, correlation: int | None, *, process: int = PROCESS_A, name: int = GEMM, **more: Value
) -> Row:
    """Returns the row of a kernel. more: other columns, such as deviceId, streamId, graphNodeId."""
    return {**_device(start, end, correlation, process), "shortName": name, "demangledName": name, **more}


def copy(start: float, end: float, correlation: int | None, *, process: int = PROCESS_A, **more: Value) -> Row:
    return {**_device(start, end, correlation, process), "copyKind": 1, **more}


def graph(start: float, end: float, correlation: int | None, *, process: int = PROCESS_A, **more: Value) -> Row:
    return {**_device(start, end, correlation, process), "graphId": 1, "graphExecId": 1, **more}


def _device(start: float, end: float, correlation: int | None, process: int) -> dict[str, Value]:
    return {
        "start": round(start * 1000),
        "end": round(end * 1000),
        "deviceId": 0,
        "streamId": 7,
        "correlationId": correlation,
        "globalPid": process,
    }


def call(
    start: float,
    end: float,
    correlation: int | None,
    *,
    process: int = PROCESS_A,
    thread: int = 1,
    name: int = LAUNCH,
    **more: Value,
) -> Row:
    return {
        "start": round(start * 1000),
        "end": round(end * 1000),
        "globalTid": process | thread,
        "correlationId": correlation,
        "nameId": name,
        **more,
    }


def launch(start: float, correlation: int | None, *, process: int = PROCESS_A, thread: int = 1) -> Row:
    return call(start, start + 2, correlation, process=process, thread=thread)


def nvtx(
    start: float, end: float | None, name: str | int | None, *, process: int = PROCESS_A, thread: int = 1, **more: Value
) -> Row:
    """Returns the row of an NVTX range. name: its own text, or the id of a registered string."""
    return {
        "start": round(start * 1000),
        "end": None if end is None else round(end * 1000),
        "eventType": PUSH_POP,
        "text": name if isinstance(name, str) else None,
        "textId": name if isinstance(name, int) else None,
        "globalTid": process | thread,
        **more,
    }
