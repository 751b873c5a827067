"""Measures the diagnosis of a large Nsight export: wall-clock and CPU seconds and peak memory, and those of plain
readers.

    python -m benchmarks.nsys_speed [--kernels 3000000] [--ranges 200000] [--folder DIR]

The export is made by SQL: as many runtime calls as kernels, launched by two threads in turn (forward, backward), a
collective on its own stream for every fiftieth kernel, nested NVTX ranges, the columns of schema 3.17. The baselines
only read the columns that a diagnosis needs; others are different ways to read the kernels' columns into NumPy. Each
runs in a process of its own, imports not counted, the file in the page cache for all.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from analyzers import analyze
from analyzers.readers.nsys_export import ROWS_AT_ONCE, opened

KERNELS, CALLS, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
PERIOD_NS = 5_000  # time from one launch to the next
STEPS = 100
PROCESS = (1 << 48) + (4242 << 24)
CREATE = f"""
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE {KERNELS} (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
  launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
  gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
  blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
  localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
  sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE {CALLS} (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE {RANGES} (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
  category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
  domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
  int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
"""
COUNT = "WITH RECURSIVE n(i) AS (VALUES(0) UNION ALL SELECT i + 1 FROM n WHERE i < :count - 1) "
# a step's second half is launched by autograd's thread
THREAD = ":process + 4242 + (i % :step_kernels >= :step_kernels / 2)"
FILL_KERNELS = f"""INSERT INTO {KERNELS} {COUNT} SELECT
  6400000000 + i * :period + 20000, 6400000000 + i * :period + 20000 + iif(i % 50, 4200 + i * 7919 % 700, 61000),
  0, 1, NULL, iif(i % 50, 7, 20), i + 1000, :process, iif(i % 50, 2 + i * 31 % 60, 1),
  iif(i % 50, 102 + i * 31 % 60, 101),
  NULL, 1, 0, 64, 1 + i % 1024, 1, 1, 256, 1, 1, 0, 49152, 0, 200000000, i, 65536, NULL, 0 FROM n"""
FILL_CALLS = f"""INSERT INTO {CALLS} {COUNT} SELECT
  6400000000 + i * :period, 6400000000 + i * :period + 3500, 0, {THREAD}, i + 1000, 200, 0, NULL FROM n"""
# range 0 of a step is the step, 1 and 2 its halves, the rest layers within the halves, in order
FILL_RANGES = f"""INSERT INTO {RANGES} (start, end, eventType, text, globalTid, textId, domainId) {COUNT},
  place(step, k, layers) AS (SELECT i / (:count / :steps), i % (:count / :steps), :count / :steps - 3 FROM n)
  SELECT 6400000000 + step * :step_ns + CASE k WHEN 0 THEN 0 WHEN 1 THEN 0 WHEN 2 THEN :step_ns / 2
           ELSE (k - 3) * (:step_ns / layers) END,
         6400000000 + step * :step_ns + CASE k WHEN 0 THEN :step_ns WHEN 1 THEN :step_ns / 2 WHEN 2 THEN :step_ns
           ELSE (k - 2) * (:step_ns / layers) - 100 END,
         59, iif(k > 2, 'layer ' || (k % 61), NULL), :process + 4242, CASE k WHEN 0 THEN 201 WHEN 1 THEN 202
           WHEN 2 THEN 203 END, 0 FROM place"""
NEEDED = {
    KERNELS: "start, end, globalPid, deviceId, streamId, correlationId, demangledName",
    CALLS: "start, end, globalTid, correlationId, nameId",
    RANGES: "start, end, globalTid, textId, text",
}

NUMBERS = NEEDED[KERNELS]
_LIST = msgspec.json.Decoder(list[int])


def write_export(path: Path, *, kernels: int, ranges: int) -> None:
    """Writes a synthetic export; the trace is as long as `kernels` launches."""
    names = {
        1: "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        101: "nccl",
    }
    for k in range(60):
        names[2 + k] = (
            f"void at::native::vectorized_elementwise_kernel<(int)4, at::native::functor_{k}<float>, "
            "std::array<char *, (unsigned long)2>>(int, T2, T3)"
            if k % 3
            else f"nvjet_hsh_{64 + k}x256_64x4_1x2_h_bz_coopA_NTT"
        )
        names[102 + k] = f"kernel_{k}"
    names |= {200: "cudaLaunchKernel_v7000", 201: "step", 202: "forward", 203: "backward"}
    step_kernels = kernels // STEPS
    of_step = {"step_kernels": step_kernels, "step_ns": step_kernels * PERIOD_NS, "steps": STEPS}
    values = {"period": PERIOD_NS, "process": PROCESS, **of_step}
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + CREATE)
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", names.items())
    for fill, count in ((FILL_KERNELS, kernels), (FILL_CALLS, kernels), (FILL_RANGES, ranges)):
        connection.execute(fill, {"count": count, **values})
    connection.commit()
    connection.close()


def diagnosis(path: Path) -> None:
    analyze([path])


def plain_select(path: Path) -> list[list[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    return [connection.execute(f"SELECT {columns} FROM {table}").fetchall() for table, columns in NEEDED.items()]


def pandas_read_sql(path: Path) -> list[object]:
    import pandas

    connection = sqlite3.connect(path)
    return [pandas.read_sql(f"SELECT {columns} FROM {table}", connection) for table, columns in NEEDED.items()]


def into_numpy_by_tuples(path: Path) -> object:
    rows = sqlite3.connect(path).execute(f"SELECT {NUMBERS} FROM {KERNELS}")
    parts = []
    while batch := rows.fetchmany(200_000):
        parts.append(np.array(batch, dtype=np.int64).T)
    return np.concatenate(parts, axis=1)


def into_numpy_by_numbers(path: Path) -> object:
    rows = sqlite3.connect(path).execute(f"SELECT {NUMBERS} FROM {KERNELS}")
    return np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64)


def into_numpy_by_json(path: Path) -> object:
    return _in_pages(path, "json_group_array({})", lambda text: np.array(_LIST.decode(text), dtype=np.int64))


def into_numpy_by_hex(path: Path) -> object:
    packed = "group_concat(printf('%016x', {}), '')"
    return _in_pages(path, packed, lambda text: np.frombuffer(bytes.fromhex(text), dtype=">i8"))


def into_numpy_by_text(path: Path) -> object:
    return _in_pages(path, "group_concat({})", lambda text: np.fromstring(text, dtype=np.int64, sep=","))


def into_numpy_as_the_reader(path: Path) -> object:
    with opened(path, path) as export:
        return export.integers(KERNELS, NUMBERS.split(", "))


def _in_pages(path: Path, packed: str, parse: Callable[[str], npt.NDArray[np.int64]]) -> object:
    connection = sqlite3.connect(path)
    (rows,) = connection.execute(f"SELECT max(rowid) FROM {KERNELS}").fetchone()
    columns = ", ".join(packed.format(name) for name in NUMBERS.split(", "))
    page = f"SELECT {columns} FROM {KERNELS} WHERE rowid > ? AND rowid <= ?"
    return [
        [parse(text) for text in connection.execute(page, (first, first + ROWS_AT_ONCE)).fetchone()]
        for first in range(0, rows, ROWS_AT_ONCE)
    ]


def measure(function: Callable[[Path], object], path: Path) -> tuple[float, float, float]:
    """Returns wall-clock seconds, CPU seconds and peak MB of one call in a fresh process (children included)."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_run, args=(function, path, sender))
    child.start()
    found: tuple[float, float, float] = receiver.recv()
    child.join()
    return found


def _run(function: Callable[[Path], object], path: Path, sender: Connection) -> None:
    if function is pandas_read_sql:
        import pandas  # noqa: F401
    wall, cpu = time.perf_counter(), _cpu_s()
    function(path)
    wall, cpu = time.perf_counter() - wall, _cpu_s() - cpu
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    sender.send((wall, cpu, sum(peaks) / 1e3))


def _cpu_s() -> float:
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=3_000_000)
    parser.add_argument("--ranges", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, help="keep the export here and use it again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = (arguments.folder or Path(temporary)) / f"export_{arguments.kernels}.sqlite"
        if not path.exists():
            write_export(path, kernels=arguments.kernels, ranges=arguments.ranges)
        path.read_bytes()
        print(
            f"{arguments.kernels:,} kernels, as many calls, {arguments.ranges:,} ranges, "
            f"{path.stat().st_size / 1e6:.0f} MB, {len(os.sched_getaffinity(0))} cores"
        )
        for function in (
            diagnosis,
            plain_select,
            pandas_read_sql,
            into_numpy_by_tuples,
            into_numpy_by_numbers,
            into_numpy_by_json,
            into_numpy_by_hex,
            into_numpy_by_text,
            into_numpy_as_the_reader,
        ):
            wall, cpu, peak_mb = measure(function, path)
            print(f"{function.__name__:26} {wall:6.1f} s wall {cpu:6.1f} s CPU {peak_mb:7.0f} MB peak", flush=True)


if __name__ == "__main__":
    main()
