"""Nsight Systems exports drawn by hand: tables that come and go, several processes, open ranges, partial files."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from analyzers import TraceError
from analyzers.breakdown import break_down
from analyzers.readers import read

PROCESS_A, PROCESS_B = 5 << 24, 6 << 24
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNEL_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "shortName", "demangledName")
RUNTIME_COLUMNS = ("start", "end", "globalTid", "correlationId", "nameId")
NVTX_COLUMNS = ("start", "end", "eventType", "text", "textId", "globalTid")
STRINGS = {1: "ampere_sgemm_128x64_tn", 2: "ncclDevKernel_AllGather_RING_LL(x)", 3: "cudaLaunchKernel_v7000", 4: "step"}
Table = tuple[Sequence[str], Sequence[Sequence[int | str | None]]]


def _export(path: Path, tables: Mapping[str, Table]) -> Path:
    connection = sqlite3.connect(path)
    for name, (columns, rows) in {"StringIds": (("id", "value"), list(STRINGS.items())), **tables}.items():
        connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)
    connection.commit()
    connection.close()
    return path


def _kernel(start: int, end: int, correlation: int, *, process: int = PROCESS_A, name: int = 1) -> tuple[int, ...]:
    return start * 1000, end * 1000, 0, 7, correlation, process, name, name


def _launch(start: int, correlation: int, *, process: int = PROCESS_A) -> tuple[int, ...]:
    return start * 1000, start * 1000 + 2000, process | 1, correlation, 3


def test_kernels_launches_and_ranges_become_one_timeline(tmp_path: Path) -> None:
    path = _export(
        tmp_path / "rank3.sqlite",
        {
            KERNEL: (KERNEL_COLUMNS, [_kernel(70, 100, 2, name=2), _kernel(10, 40, 1)]),
            RUNTIME: (RUNTIME_COLUMNS, [_launch(60, 2), _launch(1, 1)]),
            "NVTX_EVENTS": (
                NVTX_COLUMNS,
                [(0, 110_000, 59, None, 4, PROCESS_A | 1), (55_000, None, 59, "dispatch", None, PROCESS_A | 1)],
            ),
        },
    )
    (timeline,) = read(path)
    (step,) = break_down(timeline).steps
    assert (timeline.format, timeline.rank, step.name) == ("nsys", 3, "step#0")
    assert (step.compute_us, step.exposed_communication_us) == (30, 30)
    assert step.communication_by_kind["ep_dispatch"].exposed_us == 30
    assert step.idle_by_cause.host_us == 50


def test_the_same_correlation_id_in_two_processes_is_two_launches(tmp_path: Path) -> None:
    path = _export(
        tmp_path / "two.sqlite",
        {
            KERNEL: (
                KERNEL_COLUMNS,
                [
                    _kernel(0, 10, 1),
                    _kernel(50, 60, 2),
                    _kernel(0, 10, 1, process=PROCESS_B),
                    _kernel(50, 60, 2, process=PROCESS_B),
                ],
            ),
            RUNTIME: (
                RUNTIME_COLUMNS,
                [
                    _launch(0, 1),
                    _launch(40, 2),
                    _launch(0, 1, process=PROCESS_B),
                    _launch(5, 2, process=PROCESS_B),
                ],
            ),
        },
    )
    causes = [break_down(t).span.idle_by_cause for t in read(path)]
    assert [(c.host_us, c.sync_us) for c in causes] == [(40, 0), (0, 40)]


def test_time_known_only_as_a_graph_launch_is_busy_and_counted_apart(tmp_path: Path) -> None:
    columns = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId")
    graphs = [(10_000, 90_000, 0, 7, 1, PROCESS_A, 1)]
    path = _export(tmp_path / "g.sqlite", {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (columns, graphs)})
    (timeline,) = read(path)
    span = break_down(timeline).span
    assert (span.duration_us, span.busy_us, span.compute_us, span.graph_us) == (80, 80, 80, 80)


def test_copies_are_told_apart_by_direction(tmp_path: Path) -> None:
    columns = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "copyKind")
    copies = [(0, 10_000, 0, 7, 1, PROCESS_A, 1), (10_000, 30_000, 0, 7, 2, PROCESS_A, 2)]
    path = _export(tmp_path / "c.sqlite", {"CUPTI_ACTIVITY_KIND_MEMCPY": (columns, copies)})
    (timeline,) = read(path)
    breakdown = break_down(timeline)
    assert breakdown.measure(breakdown.work.from_host) == [10]
    assert breakdown.measure(breakdown.work.to_host) == [20]


def test_an_export_that_stopped_after_the_strings_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no whole Nsight export"):
        read(_export(tmp_path / "partial.sqlite", {}))


def test_an_export_of_host_calls_only_has_no_device_events(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no device events"):
        read(_export(tmp_path / "host.sqlite", {RUNTIME: (RUNTIME_COLUMNS, [_launch(0, 1)])}))


def test_a_report_without_nsys_says_how_to_export_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 2024\n" + b"\x0b\x12" * 50)
    with pytest.raises(TraceError, match="not installed") as raised:
        read(path)
    assert "nsys export --type sqlite" in raised.value.hint


def test_a_report_is_exported_by_the_nsys_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _export(tmp_path / "whole.sqlite", {KERNEL: (KERNEL_COLUMNS, [_kernel(0, 10, 1)])})
    nsys = tmp_path / "nsys"
    nsys.write_text(f'#!/bin/sh\n/bin/cp {whole} "$5"\n')
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "rank2.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 2024\n")
    (timeline,) = read(report)
    assert (timeline.path, timeline.rank) == (str(report), 2)
    nsys.write_text("#!/bin/sh\necho too new >&2; exit 1\n")
    with pytest.raises(TraceError, match="too new"):
        read(report)
