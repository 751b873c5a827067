"""Reads Nsight Systems exports (SQLite, 2020 to 2026) and, where nsys is installed, .nsys-rep reports.

Tables and columns differ between versions and appear only when something was recorded, so each is asked for by
name and used where it is. Rows come in any order; a correlation id is unique within one process only.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzers.errors import TraceError
from analyzers.intervals import Bools
from analyzers.readers.devices import by_device
from analyzers.readers.losses import CUT_FILE, Losses
from analyzers.readers.nsys_diagnostics import diagnostics
from analyzers.readers.nsys_export import MISSING, Export, opened
from analyzers.readers.nsys_memory import driver_memory, memory_sizes
from analyzers.readers.nsys_processes import PROCESS_BITS, PROCESS_SHIFT, gpus, ranks
from analyzers.timeline import NO_CORRELATION, Activity, DeviceEvents, Ints, Spans, Timeline, no_spans

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"  # the runtime's and the driver's
RANGES = "NVTX_EVENTS"
OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")  # nsys's own, and what CUPTI tells of the driver's
# table -> (what its rows are, the name of rows that have none)
DEVICE_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (Activity.KERNEL, ""),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (Activity.COPY, "Memcpy"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (Activity.COPY, "Memset"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (Activity.GRAPH, "CUDA graph"),
}
DEVICE_COLUMNS = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")
# ENUM_CUDA_MEMCPY_OPER, in Kineto's words
COPY_NAMES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 9: "Memcpy HtoH", 10: "Memcpy PtoP"}
NVTX_RANGE_TYPES = (59, 60, 70, 71)  # ENUM_NSYS_EVENT_TYPE: push/pop, start/end, and the same of NVTXT
# the first is written before any event, the last after all of them: with one alone the export was interrupted
FIRST_TABLE, LAST_TABLE = "ANALYSIS_FILE", "META_DATA_EXPORT"
SQLITE_MAGIC = b"SQLite format 3\x00"
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"  # stands within the first bytes of .qdrep and .nsys-rep alike


def sniff_sqlite(head: bytes) -> bool:
    return head.startswith(SQLITE_MAGIC)


def sniff_report(head: bytes) -> bool:
    return REPORT_MAGIC in head[:256]


def read_report(path: Path) -> list[Timeline]:
    """A .nsys-rep, exported to a temporary folder.

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
        # a report newer than nsys leaves a partial file behind: only the exit status tells
        if done.returncode != 0 or not target.exists():
            what = f"nsys could not export it: {(done.stderr or done.stdout).strip()[-300:]}"
            raise TraceError(path, what, hint=f"use an nsys at least as new as the recording; {hint}")
        return read_sqlite(target, named=path)


def read_sqlite(path: Path, named: Path | None = None) -> list[Timeline]:
    """One timeline for each device of each process in the file; `named` is what to call the file.

    Raises:
        TraceError: the file is damaged, a partial export, something else, or holds no device work.
    """
    with opened(path, named or path) as export:
        return _timelines(export)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """N rows of all processes, nanoseconds as recorded. process: globalPid >> 24; lane: a stream or the thread."""

    start: Ints
    end: Ints
    process: Ints
    lane: Ints
    correlation: Ints
    name: Ints

    def __len__(self) -> int:
        return len(self.start)

    def spans(self, chosen: Bools, names: tuple[str, ...], origin_ns: int) -> Spans:
        everything = bool(chosen.all())  # most files are of one process: no copies then
        start, end, name, lane, correlation = (
            column if everything else column[chosen]
            for column in (self.start, self.end, self.name, self.lane, self.correlation)
        )
        return Spans(
            start_us=(start - origin_ns) / 1000,
            end_us=(end - origin_ns) / 1000,
            name=name,
            lane=lane,
            correlation=correlation,
            names=names,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Device:
    """rows, and of each the device's number as its process counts, int64[N], and its Activity, int8[N]."""

    rows: _Rows
    number: Ints
    activity: npt.NDArray[np.int8]


def _timelines(export: Export) -> list[Timeline]:
    losses = Losses()
    device = _device_rows(export, losses)
    if not len(device.rows):
        raise _no_device_work(export)
    if FIRST_TABLE in export.columns and LAST_TABLE not in export.columns:
        losses.add("tables", 1, CUT_FILE)
    calls = _calls(export, losses)
    capture_end = int(max(device.rows.end.max(), calls.end.max(initial=0)))
    ranges, still_open = _ranges(export, losses, capture_end)
    overhead = _overhead(export)
    origin_ns = min(int(rows.start.min()) for rows in (device.rows, calls, ranges) if len(rows))
    working = _working_processes(device, losses)
    names, rank_of, gpu_of = export.names, ranks(export, working), gpus(export)
    memory, size_of = driver_memory(export), memory_sizes(export)
    common = Timeline(
        path=str(export.path),
        format="nsys",
        rank=None,
        device_index=None,
        origin_us=origin_ns / 1000 + _session_start_us(export),
        device=_events(device, np.zeros(len(device.rows), dtype=bool), names, origin_ns),
        calls=no_spans(names),
        ops=no_spans(names),
        ranges=no_spans(names),
        dropped=losses.dropped(),
        warnings=(*diagnostics(export, working), *still_open),
    )
    found = []
    for process in working:
        own = calls.spans(calls.process == process, names, origin_ns)
        annotated = ranges.spans(ranges.process == process, names, origin_ns)
        cost = overhead.spans(overhead.process == process, names, origin_ns)
        for number, chosen in _devices(device, process):
            gpu = gpu_of.get((process & PROCESS_BITS, number), number)
            timeline = replace(
                common,
                rank=rank_of[process],
                device_index=gpu,
                device=_events(device, chosen, names, origin_ns),
                calls=_of_device(own, device.rows, process, chosen),
                ranges=annotated,
                overhead=cost,
                memory=memory.of_device(process, number, own, origin_ns),
                memory_limit_bytes=size_of.get(gpu),
            )
            found.append(timeline)
    return found


def _working_processes(device: _Device, losses: Losses) -> list[int]:
    """Those that ran kernels; others (a data loader's) only if there are none."""
    process = device.rows.process
    every = np.unique(process)
    working = np.unique(process[device.activity != Activity.COPY])
    if not len(working):
        return [int(one) for one in every]
    losses.add("copies", int((~np.isin(process, working)).sum()), "they are of processes that run no kernels")
    return [int(one) for one in working]


def _devices(device: _Device, process: int) -> Iterator[tuple[int, Bools]]:
    """The number of each device that a process ran kernels on, and its rows, bool[N]."""
    mine = device.rows.process == process
    for number, here in by_device(device.activity[mine], device.number[mine]):
        chosen = mine.copy()
        chosen[mine] = here
        yield number, chosen


def _events(device: _Device, chosen: Bools, names: tuple[str, ...], origin_ns: int) -> DeviceEvents:
    spans = device.rows.spans(chosen, names, origin_ns)
    none = np.broadcast_to(np.int64(-1), len(spans))
    return DeviceEvents(spans=spans, activity=device.activity[chosen], group=none, message=none)


def _of_device(calls: Spans, rows: _Rows, process: int, chosen: Bools) -> Spans:
    """The calls of a process, as one of its devices, whose rows are `chosen`, sees them."""
    elsewhere = (rows.process == process) & ~chosen
    return calls.unlinked(of=rows.correlation[elsewhere], but=rows.correlation[chosen])


def _device_rows(export: Export, losses: Losses) -> _Device:
    parts = []
    for table, (activity, nameless) in DEVICE_TABLES.items():
        columns = (*DEVICE_COLUMNS, "copyKind" if nameless else "demangledName")
        start, end, pid, number, stream, correlation, said = export.integers(table, columns)
        name = _copy_names(export, said, nameless) if nameless else _kernel_names(export, table, said)
        kind = np.full(len(start), int(activity), dtype=np.int8)
        parts.append((start, end, pid >> PROCESS_SHIFT, stream, correlation, name, number, kind))
    start, end, process, stream, correlation, name, number, kind = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    rows = _Rows(start=start, end=end, process=process, lane=stream, correlation=_known(correlation), name=name)
    good = (start != MISSING) & (end >= start)
    losses.add("device events", int((~good).sum()), "they have no start, or end before it")
    return _Device(rows=_chosen(rows, good), number=number[good], activity=kind[good])


def _kernel_names(export: Export, table: str, name: Ints) -> Ints:
    if (name == MISSING).any():
        (short,) = export.integers(table, ("shortName",))
        name = np.where(name != MISSING, name, short)
    return export.codes_of_ids(name)


def _copy_names(export: Export, kind: Ints, nameless: str) -> Ints:
    used = np.unique(kind)
    codes: npt.NDArray[Any] = np.array(
        [export.code(COPY_NAMES.get(k, nameless)) for k in used.tolist()], dtype=np.int32
    )
    return codes[np.searchsorted(used, kind)]


def _calls(export: Export, losses: Losses) -> _Rows:
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    start, end, thread, correlation, name = export.integers(CALLS, columns)
    once = _first_of_equals(start, end, thread, correlation, name)
    rows = _host_rows(start, end, thread, _known(correlation), export.codes_of_ids(name))
    losses.add("calls", int((~once).sum()), "they are held twice, under another name")
    return _chosen(rows, once)


def _overhead(export: Export) -> _Rows:
    columns = ("start", "end", "globalTid", "nameId")
    tables = zip(*(export.integers(table, columns) for table in OVERHEADS), strict=True)
    start, end, thread, name = (np.concatenate(column) for column in tables)
    return _host_rows(start, end, thread, None, export.codes_of_ids(name))


def _first_of_equals(start: Ints, *others: Ints) -> Bools:
    """bool[N]: all but the later ones of rows that differ in the last column only. Some exports were post-processed
    and hold each call under two names; in most no two calls begin in one nanosecond, and little is compared."""
    order = np.argsort(start, kind="stable")
    tie = np.diff(start[order]) == 0
    tied = order[np.append(tie, False) | np.append(False, tie)] if len(order) else order
    tied = tied[np.lexsort([column[tied] for column in reversed((start, *others))])]
    same = np.ones(max(0, len(tied) - 1), dtype=bool)
    for column in (start, *others[:-1]):
        same &= np.diff(column[tied]) == 0
    first = np.ones(len(start), dtype=bool)
    first[tied[1:][same]] = False
    return first


def _ranges(export: Export, losses: Losses, capture_end: int) -> tuple[_Rows, list[str]]:
    """The ranges, and what is to be said of those that nothing ended: they are clipped to the capture."""
    where = f"eventType IN ({', '.join(map(str, NVTX_RANGE_TYPES))})"
    start, end, thread, text_id = export.integers(RANGES, ("start", "end", "globalTid", "textId"), where)
    name = export.codes_of_ids(text_id)
    # registered strings have an id, others their own text; NVTXT and some versions write neither
    for at, text in enumerate(export.texts(RANGES, "text", where)):
        if text:
            name[at] = export.code(text)
    still_open = (end == MISSING) | ((end == 0) & (start > 0))
    rows = _host_rows(start, np.where(still_open, max(capture_end, int(end.max(initial=0))), end), thread, None, name)
    good = rows.end >= start
    losses.add("ranges", int((~good).sum()), "they end before they start")
    return _chosen(rows, good), _open_ranges(export.names, name[still_open])


def _open_ranges(names: Sequence[str], still_open: Ints) -> list[str]:
    if not len(still_open):
        return []
    shown = ", ".join(sorted({names[code] for code in still_open.tolist()})[:3])
    return [f"{len(still_open)} NVTX ranges ({shown}) were open when the capture ended: they are clipped there"]


def _host_rows(start: Ints, end: Ints, thread: Ints, correlation: Ints | None, name: Ints) -> _Rows:
    nothing = np.broadcast_to(np.int64(NO_CORRELATION), len(start))
    return _Rows(
        start=start,
        end=end,
        process=thread >> PROCESS_SHIFT,
        lane=thread,
        correlation=nothing if correlation is None else correlation,
        name=name,
    )


def _chosen(rows: _Rows, good: Bools) -> _Rows:
    return rows if good.all() else _Rows(**{name: column[good] for name, column in vars(rows).items()})


def _known(correlation: Ints) -> Ints:
    """0 and NULL are no correlation."""
    return np.where(correlation > 0, correlation, NO_CORRELATION)


def _session_start_us(export: Export) -> float:
    """What turns the file's times into Unix time; nsys export --ts-normalize has done so already."""
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
            "is no whole Nsight export: it holds neither device work nor CUDA calls",
            hint="an export that failed leaves such a file behind: export again with an nsys at least as new as "
            "the one that recorded",
        )
    return TraceError(
        export.path,
        "has no device events",
        hint="record with --trace=cuda,nvtx, and make sure the captured window contains training steps",
    )
