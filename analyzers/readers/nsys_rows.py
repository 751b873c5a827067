"""Reads the event rows of an Nsight export for all processes: device work, calls, ranges, overhead.

Times are nanoseconds as recorded. Incomplete rows and duplicates are left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzers.intervals import Bools
from analyzers.readers.losses import Losses
from analyzers.readers.nsys_export import MISSING, Export
from analyzers.readers.nsys_processes import PROCESS_SHIFT
from analyzers.steps import is_step
from analyzers.timeline import NO_CORRELATION, Activity, Ints, Spans

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"  # calls of the runtime and of the driver
RANGES = "NVTX_EVENTS"
# overhead of nsys, and that of the driver as CUPTI reports it
OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
# table -> (activity of its rows, name for rows without one)
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """N rows of all processes, times in nanoseconds as recorded.

    process: globalPid >> 24; lane: a stream or a thread.
    """

    start: Ints
    end: Ints
    process: Ints
    lane: Ints
    correlation: Ints
    name: Ints

    def __len__(self) -> int:
        return len(self.start)

    def spans(self, chosen: Bools, names: tuple[str, ...], origin_ns: int) -> Spans:
        everything = bool(chosen.all())  # most files have a single process: no copy is needed
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
class DeviceRows:
    """Rows of device work, with the device's number within its process, int64[N], and its Activity, int8[N]."""

    rows: Rows
    number: Ints
    activity: npt.NDArray[np.int8]


def device_rows(export: Export, losses: Losses) -> DeviceRows:
    """Returns kernels, copies, memsets and graph launches."""
    parts = []
    for table, (activity, nameless) in DEVICE_TABLES.items():
        columns = (*DEVICE_COLUMNS, "copyKind" if nameless else "demangledName")
        start, end, pid, number, stream, correlation, named = export.integers(table, columns)
        name = _copy_names(export, named, nameless) if nameless else _kernel_names(export, table, named)
        kind = np.full(len(start), int(activity), dtype=np.int8)
        parts.append((start, end, pid >> PROCESS_SHIFT, stream, correlation, name, number, kind))
    start, end, process, stream, correlation, name, number, kind = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    rows = Rows(start=start, end=end, process=process, lane=stream, correlation=_known(correlation), name=name)
    good = (start != MISSING) & (end >= start)
    losses.add("device events", int((~good).sum()), "they have no start, or end before it")
    return DeviceRows(rows=_chosen(rows, good), number=number[good], activity=kind[good])


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


def calls(export: Export, losses: Losses) -> Rows:
    """Returns the calls of the CUDA runtime and driver, each once."""
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    start, end, thread, correlation, name = export.integers(CALLS, columns)
    once = _first_of_equals(start, end, thread, correlation, name)
    rows = _host_rows(start, end, thread, _known(correlation), export.codes_of_ids(name))
    losses.add("calls", int((~once).sum()), "duplicates under another name")
    return _chosen(rows, once)


def overhead(export: Export) -> Rows:
    """Returns the overhead of nsys and of the driver, which is not work of the program."""
    columns = ("start", "end", "globalTid", "nameId")
    tables = zip(*(export.integers(table, columns) for table in OVERHEADS), strict=True)
    start, end, thread, name = (np.concatenate(column) for column in tables)
    return _host_rows(start, end, thread, None, export.codes_of_ids(name))


def _first_of_equals(start: Ints, *others: Ints) -> Bools:
    """Returns bool[N]: false for rows that repeat an earlier one except in the last column.

    Some post-processed exports have each call under two names. In most exports no two calls start in the same
    nanosecond, so little is compared.
    """
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


def ranges(export: Export, losses: Losses, capture_end: int) -> tuple[Rows, list[str]]:
    """Returns the ranges, and warnings about those that never ended, which are clipped to the end of the capture. Steps
    that never ended are left out if others did."""
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
    unfinished = _unfinished_steps(rows, still_open, export.names)
    losses.add("steps", int(unfinished.sum()), "the capture ended inside them: incomplete steps")
    return _chosen(rows, good & ~unfinished), _open_ranges(export.names, name[still_open & ~unfinished])


def _unfinished_steps(rows: Rows, still_open: Bools, names: Sequence[str]) -> Bools:
    """Returns bool[N]: steps that never ended, if there are complete steps to analyse instead."""
    codes = [code for code in np.unique(rows.name).tolist() if is_step(names[code])]
    step = np.isin(rows.name, codes)
    return step & still_open & bool((step & ~still_open).any())


def _open_ranges(names: Sequence[str], still_open: Ints) -> list[str]:
    if not len(still_open):
        return []
    shown = ", ".join(sorted({names[code] for code in still_open.tolist()})[:3])
    return [f"{len(still_open)} NVTX ranges ({shown}) were open when the capture ended: they are clipped there"]


def _host_rows(start: Ints, end: Ints, thread: Ints, correlation: Ints | None, name: Ints) -> Rows:
    nothing = np.broadcast_to(np.int64(NO_CORRELATION), len(start))
    return Rows(
        start=start,
        end=end,
        process=thread >> PROCESS_SHIFT,
        lane=thread,
        correlation=nothing if correlation is None else correlation,
        name=name,
    )


def _chosen(rows: Rows, good: Bools) -> Rows:
    return rows if good.all() else Rows(**{name: column[good] for name, column in vars(rows).items()})


def _known(correlation: Ints) -> Ints:
    """Replaces 0 and NULL, which are not correlation ids, by NO_CORRELATION."""
    return np.where(correlation > 0, correlation, NO_CORRELATION)
