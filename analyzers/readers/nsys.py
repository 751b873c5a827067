"""Reads Nsight Systems exports (SQLite, 2020 to 2026) and, where nsys is installed, .nsys-rep reports.

Tables and columns differ between versions and appear only when something was recorded, so each is asked for by
name and used where it is. Rows come in any order; a correlation id is unique within one process only.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analyzers.errors import TraceError
from analyzers.intervals import Bools
from analyzers.readers.naming import rank_in_name
from analyzers.timeline import NO_CORRELATION, Activity, DeviceEvents, Ints, Spans, Timeline, no_spans

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"
# table -> (what its rows are, the name of rows that have none)
DEVICE_TABLES = {
    KERNELS: (Activity.KERNEL, ""),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (Activity.COPY, "Memcpy"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (Activity.COPY, "Memset"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (Activity.GRAPH, "CUDA graph"),
}
# ENUM_CUDA_MEMCPY_OPER, in Kineto's words
COPY_NAMES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 9: "Memcpy HtoH", 10: "Memcpy PtoP"}
NVTX_RANGE_TYPES = (59, 60, 70, 71)  # ENUM_NSYS_EVENT_TYPE: push/pop, start/end, and the same of NVTXT
PROCESS_SHIFT = 24  # globalTid: hardware 8 bits, VM 8, process 24, thread 24
ROWS_AT_ONCE = 200_000
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
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # a report newer than nsys leaves a partial file behind: only the exit status tells
        if done.returncode != 0 or not target.exists():
            what = f"nsys could not export it: {done.stderr.strip()[-300:]}"
            raise TraceError(path, what, hint=f"use an nsys at least as new as the recording; {hint}")
        return read_sqlite(target, named=path)


def read_sqlite(path: Path, named: Path | None = None) -> list[Timeline]:
    """One timeline for each device of each process in the file; `named` is what to call the file.

    Raises:
        TraceError: the file is damaged, a partial export, or holds no device work.
    """
    named = named or path
    try:
        connection = sqlite3.connect(f"file:{path.resolve()}?mode=ro&immutable=1", uri=True)
        try:
            # dates in META_DATA_EXPORT are localised and not always UTF-8
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            return _timelines(_Export(path=named, connection=connection))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise TraceError(
            named, f"is a damaged SQLite file ({error})", hint="export the report again with nsys"
        ) from None


class _Export:
    """One export: its tables, and its strings as one table of names."""

    def __init__(self, *, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self.columns = {
            table: {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')} for (table,) in tables
        }
        if "StringIds" in self.columns:
            self._strings = connection.execute("SELECT id, value FROM StringIds").fetchall()
        else:
            self._strings = []
        self._codes = {value: code for code, value in enumerate(dict.fromkeys(v for _, v in self._strings))}
        self._code_of_id = {number: self._codes[value] for number, value in self._strings}

    def code(self, name: str) -> int:
        return self._codes.setdefault(name, len(self._codes))

    def codes_of_ids(self, ids: Ints) -> Ints:
        """The names' codes for StringIds ids (int64[N] to int64[N])."""
        unknown = self.code("")
        unique, inverse = np.unique(ids, return_inverse=True)
        codes = np.array([self._code_of_id.get(i, unknown) for i in unique.tolist()], dtype=np.int64)
        return codes[inverse] if len(ids) else ids

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._codes)

    def has(self, table: str, *columns: str) -> bool:
        return set(columns) <= self.columns.get(table, set())

    def integers(self, table: str, columns: Sequence[str], where: str = "1") -> Ints:
        """int64[len(columns), N]: columns that this version lacks, and NULLs, are -1."""
        if table not in self.columns:
            return np.empty((len(columns), 0), dtype=np.int64)
        asked = ", ".join(f'COALESCE("{c}", -1)' if c in self.columns[table] else "-1" for c in columns)
        rows = self.connection.execute(f'SELECT {asked} FROM "{table}" WHERE {where}')
        parts = []
        while batch := rows.fetchmany(ROWS_AT_ONCE):
            parts.append(np.array(batch, dtype=np.int64).T)
        return np.concatenate(parts, axis=1) if parts else np.empty((len(columns), 0), dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """Device rows of all processes. process: int64[N] (globalPid >> 24); device: int64[N]."""

    start: Ints
    end: Ints
    process: Ints
    device: Ints
    lane: Ints
    correlation: Ints
    name: Ints
    activity: Ints


def _timelines(export: _Export) -> list[Timeline]:
    rows = _device_rows(export)
    if not len(rows.start):
        raise _no_device_work(export)
    calls, ranges = _calls(export), _ranges(export)
    origin_ns = int(rows.start.min())
    for host in (calls, ranges):
        origin_ns = min(origin_ns, int(host.start.min())) if len(host.start) else origin_ns
    places = np.unique(np.stack((rows.process, rows.device)), axis=1).T.tolist()
    return [
        _timeline(export, rows, (calls, ranges), process=process, device=device, origin_ns=origin_ns)
        for process, device in places
    ]


def _timeline(
    export: _Export, rows: _Rows, host: tuple[_Rows, _Rows], *, process: int, device: int, origin_ns: int
) -> Timeline:
    mine = (rows.process == process) & (rows.device == device)
    calls, ranges = (_spans(h, h.process == process, export.names, origin_ns) for h in host)
    elsewhere = (rows.process == process) & (rows.device != device)
    calls = calls.unlinked(of=rows.correlation[elsewhere], but=rows.correlation[mine])
    spans = _spans(rows, mine, export.names, origin_ns)
    activity = rows.activity[mine].astype(np.int8)
    unsaid = np.full(len(spans), -1, dtype=np.int64)
    events = DeviceEvents(spans=spans, activity=activity, group=unsaid, message=unsaid)
    return Timeline(
        path=str(export.path),
        format="nsys",
        rank=rank_in_name(export.path),
        device_index=device,
        origin_us=origin_ns / 1000 + _session_start_us(export),
        device=events,
        calls=calls,
        ops=no_spans(export.names),
        ranges=ranges,
    )


def _spans(rows: _Rows, chosen: Bools, names: tuple[str, ...], origin_ns: int) -> Spans:
    return Spans(
        start_us=(rows.start[chosen] - origin_ns) / 1000,
        end_us=(rows.end[chosen] - origin_ns) / 1000,
        name=rows.name[chosen],
        lane=rows.lane[chosen],
        correlation=rows.correlation[chosen],
        names=names,
    )


def _device_rows(export: _Export) -> _Rows:
    columns = (
        "start",
        "end",
        "globalPid",
        "deviceId",
        "streamId",
        "correlationId",
        "demangledName",
        "shortName",
        "copyKind",
    )
    parts = []
    for table, (activity, nameless) in DEVICE_TABLES.items():
        start, end, pid, device, stream, correlation, long, short, copy_kind = export.integers(table, columns)
        if nameless:
            kinds = {k: export.code(COPY_NAMES.get(k, nameless)) for k in np.unique(copy_kind).tolist()}
            name = np.array([kinds[k] for k in copy_kind.tolist()], dtype=np.int64)
        else:
            name = export.codes_of_ids(np.where(long >= 0, long, short))
        kind = np.full(len(start), int(activity), dtype=np.int64)
        parts.append((start, end, pid >> PROCESS_SHIFT, device, stream, correlation, name, kind))
    return _rows(parts)


def _calls(export: _Export) -> _Rows:
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    found = export.integers(CALLS, columns)
    # some exports were post-processed and hold each call twice, under two names
    _, first = np.unique(found[:4], axis=1, return_index=True)
    start, end, thread, correlation, name = found[:, np.sort(first)]
    return _host_rows(
        start, end, thread, np.where(correlation > 0, correlation, NO_CORRELATION), export.codes_of_ids(name)
    )


def _ranges(export: _Export) -> _Rows:
    types = ", ".join(str(t) for t in NVTX_RANGE_TYPES)
    where = f"eventType IN ({types})"
    start, end, thread, text_id = export.integers(RANGES, ("start", "end", "globalTid", "textId"), where)
    name = export.codes_of_ids(text_id)
    if export.has(RANGES, "text"):
        texts = export.connection.execute(f"SELECT text FROM {RANGES} WHERE {where}")
        own = (text for (text,) in texts)
        name = np.array(
            [code if text is None else export.code(text) for text, code in zip(own, name.tolist(), strict=True)],
            dtype=np.int64,
        )
    open_end = max(int(end.max(initial=0)), _capture_end(export))
    return _host_rows(start, np.where(end < 0, open_end, end), thread, np.full(len(start), NO_CORRELATION), name)


def _capture_end(export: _Export) -> int:
    ends = [export.integers(table, ("end",)).max(initial=0) for table in (CALLS, *DEVICE_TABLES)]
    return int(max(ends))


def _host_rows(start: Ints, end: Ints, thread: Ints, correlation: Ints, name: Ints) -> _Rows:
    nothing = np.full(len(start), -1, dtype=np.int64)
    return _rows([(start, end, thread >> PROCESS_SHIFT, nothing, thread, correlation, name, nothing)])


def _rows(parts: Sequence[tuple[Ints, ...]]) -> _Rows:
    start, end, process, device, lane, correlation, name, activity = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    return _Rows(
        start=start,
        end=end,
        process=process,
        device=device,
        lane=lane,
        correlation=correlation,
        name=name,
        activity=activity,
    )


def _session_start_us(export: _Export) -> float:
    table, column = "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"
    if not export.has(table, column):
        return 0.0
    (found,) = export.integers(table, (column,))
    return float(found[0]) / 1000 if len(found) and found[0] > 0 else 0.0


def _no_device_work(export: _Export) -> TraceError:
    if CALLS not in export.columns and RANGES not in export.columns:
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
