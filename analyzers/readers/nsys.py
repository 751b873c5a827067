"""Reads Nsight Systems exports (SQLite, 2020 to 2026) and, where nsys is installed, .nsys-rep reports.

Tables and columns differ between versions and exist only if something was recorded, so each is looked up by name. Rows
come in any order; a correlation id is unique within one process only.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analyzers.diagnosis import Dropped
from analyzers.errors import TraceError
from analyzers.intervals import Bools
from analyzers.readers import nsys_rows
from analyzers.readers.devices import by_device
from analyzers.readers.losses import CUT_FILE, Losses
from analyzers.readers.nsys_diagnostics import diagnostics
from analyzers.readers.nsys_export import Export, opened
from analyzers.readers.nsys_memory import DriverMemory, compute_capabilities, driver_memory, memory_sizes
from analyzers.readers.nsys_processes import PROCESS_BITS, gpus, ranks
from analyzers.readers.nsys_rows import CALLS, RANGES, DeviceRows, Rows
from analyzers.timeline import Activity, DeviceEvents, Spans, Timeline, no_spans

# the first is written before any event, the last after all of them: with one alone the export was interrupted
FIRST_TABLE, LAST_TABLE = "ANALYSIS_FILE", "META_DATA_EXPORT"
SQLITE_MAGIC = b"SQLite format 3\x00"
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"  # among the first bytes of both .qdrep and .nsys-rep


def sniff_sqlite(head: bytes) -> bool:
    return head.startswith(SQLITE_MAGIC)


def sniff_report(head: bytes) -> bool:
    return REPORT_MAGIC in head[:256]


def read_report(path: Path) -> list[Timeline]:
    """Reads a .nsys-rep by exporting it to a temporary folder.

    Raises:
        TraceError: nsys is not installed, or it could not export the report.
    """
    nsys = shutil.which("nsys")
    hint = f"on the machine that recorded it: nsys export --type sqlite -o {path.stem}.sqlite {path.name}"
    if nsys is None:
        raise TraceError(path, "is an Nsight report, and nsys is not installed here to export it", hint=hint)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"{path.stem}.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--output", str(target), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        # a report newer than nsys leaves a partial file: only the exit status shows that
        if done.returncode != 0 or not target.exists():
            what = f"nsys could not export it: {(done.stderr or done.stdout).strip()[-300:]}"
            raise TraceError(path, what, hint=f"use an nsys at least as new as the recording; {hint}")
        return read_sqlite(target, named=path)


def read_sqlite(path: Path, named: Path | None = None) -> list[Timeline]:
    """Returns one timeline per device of each process in the file; `named` is the path that errors show.

    Raises:
        TraceError: the file is damaged, a partial export, something else, or holds no device work.
    """
    with opened(path, named or path) as export:
        return _timelines(export)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Recording:
    """The contents of an export, of all processes. origin_ns: the start of its earliest event."""

    export: Export
    device: DeviceRows
    calls: Rows
    ranges: Rows
    overhead: Rows
    memory: DriverMemory
    names: tuple[str, ...]
    dropped: tuple[Dropped, ...]
    warnings: tuple[str, ...]

    @property
    def origin_ns(self) -> int:
        return min(int(rows.start.min()) for rows in (self.device.rows, self.calls, self.ranges) if len(rows))

    def timelines(self, process: int, rank: int | None) -> Iterator[Timeline]:
        """Yields one timeline per device that a process (globalPid >> 24) ran kernels on."""
        origin_ns, gpu_of, size_of = self.origin_ns, gpus(self.export), memory_sizes(self.export)
        capability_of = compute_capabilities(self.export)
        calls, ranges, overhead = (
            rows.spans(rows.process == process, self.names, origin_ns)
            for rows in (self.calls, self.ranges, self.overhead)
        )
        for number, chosen in _devices(self.device, process):
            gpu = gpu_of.get((process & PROCESS_BITS, number), number)
            yield Timeline(
                path=str(self.export.path),
                format="nsys",
                rank=rank,
                device_index=gpu,
                origin_us=origin_ns / 1000 + _session_start_us(self.export),
                device=_events(self.device, chosen, self.names, origin_ns),
                calls=_of_device(calls, self.device.rows, process, chosen),
                ops=no_spans(self.names),
                ranges=ranges,
                overhead=overhead,
                dropped=self.dropped,
                warnings=self.warnings,
                memory=self.memory.of_device(process, number, calls, origin_ns),
                memory_limit_bytes=size_of.get(gpu),
                compute_capability=capability_of.get(gpu),
            )


def _timelines(export: Export) -> list[Timeline]:
    losses = Losses()
    device = nsys_rows.device_rows(export, losses)
    if not len(device.rows):
        raise _no_device_work(export)
    if FIRST_TABLE in export.columns and LAST_TABLE not in export.columns:
        losses.add("tables", 1, CUT_FILE)
    calls = nsys_rows.calls(export, losses)
    capture_end = int(max(device.rows.end.max(), calls.end.max(initial=0)))
    ranges, still_open = nsys_rows.ranges(export, losses, capture_end)
    working = _working_processes(device, losses)
    recording = _Recording(
        export=export,
        device=device,
        calls=calls,
        ranges=ranges,
        overhead=nsys_rows.overhead(export),
        memory=driver_memory(export),
        names=export.names,
        dropped=losses.dropped(),
        warnings=(*diagnostics(export, working), *still_open),
    )
    rank_of = ranks(export, working)
    return [timeline for process in working for timeline in recording.timelines(process, rank_of[process])]


def _working_processes(device: DeviceRows, losses: Losses) -> list[int]:
    """Returns the processes that ran kernels, or all if none did; counts copies by other processes (data loaders) as
    lost."""
    process = device.rows.process
    every = np.unique(process)
    working = np.unique(process[device.activity != Activity.COPY])
    if not len(working):
        return [int(one) for one in every]
    losses.add("copies", int((~np.isin(process, working)).sum()), "they are of processes that run no kernels")
    return [int(one) for one in working]


def _devices(device: DeviceRows, process: int) -> Iterator[tuple[int, Bools]]:
    """Yields the number of each device that a process ran kernels on, and a mask of its rows, bool[N]."""
    mine = device.rows.process == process
    for number, here in by_device(device.activity[mine], device.number[mine]):
        chosen = mine.copy()
        chosen[mine] = here
        yield number, chosen


def _events(device: DeviceRows, chosen: Bools, names: tuple[str, ...], origin_ns: int) -> DeviceEvents:
    spans = device.rows.spans(chosen, names, origin_ns)
    none = np.broadcast_to(np.int64(-1), len(spans))
    return DeviceEvents(spans=spans, activity=device.activity[chosen], group=none, message=none)


def _of_device(calls: Spans, rows: Rows, process: int, chosen: Bools) -> Spans:
    """Returns a process's calls, without the correlation ids of its other devices.

    chosen: the mask of this device's rows.
    """
    elsewhere = (rows.process == process) & ~chosen
    return calls.unlinked(of=rows.correlation[elsewhere], but=rows.correlation[chosen])


def _session_start_us(export: Export) -> float:
    """Returns the offset from the file's times to Unix time, µs; 0 if `nsys export --ts-normalize` has added it
    already."""
    normalised = export.texts(LAST_TABLE, "value", "name = 'EXPORT_PARAM_TIME_NORMALIZE'")
    (epoch_ns,) = export.integers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
    return max(0.0, float(epoch_ns[0]) / 1000) if len(epoch_ns) and normalised != ["true"] else 0.0


def _no_device_work(export: Export) -> TraceError:
    host: Sequence[str] = [
        table for table in (CALLS, RANGES, LAST_TABLE, "EXPORT_META_DATA") if table in export.columns
    ]
    if not host:
        return TraceError(
            export.path,
            "is not a complete Nsight export: it has neither device work nor CUDA calls",
            hint="a failed export leaves such a file: export again with an nsys at least as new as "
            "the one that recorded",
        )
    return TraceError(
        export.path,
        "has no device events",
        hint="record with --trace=cuda,nvtx, and make sure the captured window contains training steps",
    )
