"""Files that are no complete Nsight export, or are one in an unusual place: reported as such, and never read as another
format."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from analyzers import TraceError, analyze
from analyzers.diagnosis import Wall
from analyzers.one_rank.breakdown import break_down
from analyzers.readers import read
from tests.analyzers.nsys_drawing import CALLS, KERNELS, RANGES, Row, kernel, launch, nvtx, write
from tests.rows import filled

WHOLE: dict[str, list[Row]] = {KERNELS: [kernel(0, 10, 1), kernel(30, 50, 2)], CALLS: [launch(0, 1), launch(25, 2)]}


def _kernels(path: Path) -> int:
    (timeline,) = read(path)
    return len(timeline.device.spans)


def test_an_export_that_stopped_after_the_strings_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="not a complete Nsight export"):
        read(write(tmp_path / "partial.sqlite", {}))


def test_an_export_that_stopped_before_its_last_table_names_no_wall(tmp_path: Path) -> None:
    analysis = analyze([write(tmp_path / "partial.sqlite", {**WHOLE, "ANALYSIS_FILE": []})])
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    assert [lost.what for lost in analysis.traces[0].coverage.dropped] == ["tables"]


def test_an_export_of_host_calls_only_has_no_device_events(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no device events"):
        read(write(tmp_path / "host.sqlite", {CALLS: [launch(0, 1)]}))


def test_tables_that_are_there_and_empty_are_as_good_as_absent(tmp_path: Path) -> None:
    empty: dict[str, list[Row]] = {
        table: [] for table in (RANGES, "CUPTI_ACTIVITY_KIND_MEMCPY", "PROFILER_OVERHEAD", "MPI_RANKS")
    }
    assert _kernels(write(tmp_path / "lazy.sqlite", {**WHOLE, **empty})) == 2
    with pytest.raises(TraceError, match="no device events"):
        read(write(tmp_path / "nothing.sqlite", {KERNELS: [], CALLS: [], RANGES: []}))


def test_a_database_of_something_else_is_not_taken_for_an_export(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE trials (number INTEGER)")
    with pytest.raises(TraceError, match="SQLite database, but not an Nsight Systems export"):
        read(path)


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    path.touch()
    with pytest.raises(TraceError, match="the file is empty"):
        read(path)


def test_a_cut_file_is_said_to_be_cut_wherever_that_is(tmp_path: Path) -> None:
    many = {KERNELS: [kernel(10 * k, 10 * k + 5, k) for k in range(1, 2000)], RANGES: [nvtx(0, 9, "x")]}
    whole = write(tmp_path / "whole.sqlite", many).read_bytes()
    cut = tmp_path / "cut.sqlite"
    for size in filled(range(100, len(whole), 3001)):
        cut.write_bytes(whole[:size])
        with pytest.raises(TraceError, match="is cut short"):
            read(cut)


@pytest.mark.parametrize("seed", range(40))
def test_a_file_with_damaged_bytes_is_read_or_refused_and_never_a_crash(tmp_path: Path, seed: int) -> None:
    many = {KERNELS: [kernel(10 * k, 10 * k + 5, k) for k in range(1, 300)], RANGES: [nvtx(0, 9, "x")]}
    damaged = bytearray(write(tmp_path / "whole.sqlite", many).read_bytes())
    rng = random.Random(seed)
    for _ in range(1 + seed % 20):
        damaged[rng.randrange(16, len(damaged))] = rng.randrange(256)
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(damaged)
    with suppress(TraceError):
        for timeline in read(path):
            break_down(timeline)


def test_numbers_of_rows_at_the_end_of_what_sqlite_can_count_are_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "far.sqlite", WHOLE)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {KERNELS} SET rowid = 9223372036854775807 WHERE rowid = 2")
    with pytest.raises(TraceError, match="damaged"):
        read(path)


def test_text_that_is_not_utf_8_is_read_nevertheless(tmp_path: Path) -> None:
    odd: Row = {"name": "EXPORT_TIME_LOCAL", "value": b"2025\xc4\xea"}
    path = write(tmp_path / "locale.sqlite", {**WHOLE, "META_DATA_EXPORT": [odd]}, {1: "gemm"})
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE META_DATA_EXPORT SET value = CAST(value AS TEXT)")
        connection.execute("INSERT INTO StringIds VALUES (3, CAST(x'c4ea6c61756e6368' AS TEXT))")
    assert _kernels(path) == 2


def test_a_file_in_a_folder_that_cannot_be_written_to_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    path = write(folder / "rank0.sqlite", WHOLE)
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert _kernels(path) == 2
        assert os.listdir(folder) == ["rank0.sqlite"]
    finally:
        folder.chmod(0o755)


def test_nothing_is_written_next_to_a_file_with_a_write_ahead_log(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.sqlite", WHOLE)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert _kernels(path) == 2
    assert os.listdir(tmp_path) == ["rank0.sqlite"]


def test_rows_only_in_the_write_ahead_log_are_read_too(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.sqlite", WHOLE)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(f"INSERT INTO {KERNELS} SELECT * FROM {KERNELS} LIMIT 1")
    writer.commit()
    (tmp_path / "linked").mkdir()
    link = tmp_path / "linked" / "rank0.sqlite"
    link.symlink_to(path)
    try:
        assert _kernels(path) == _kernels(link) == 3
    finally:
        writer.close()


def test_a_file_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.sqlite", WHOLE)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(TraceError, match="being written by another program"):
            read(path)
    finally:
        writer.close()


def test_a_report_without_nsys_says_how_to_export_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 2024\n" + b"\x0b\x12" * 50)
    with pytest.raises(TraceError, match="not installed") as raised:
        read(path)
    assert "nsys export --type sqlite" in raised.value.hint


def test_a_report_is_exported_by_the_nsys_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write(tmp_path / "whole.sqlite", WHOLE)
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
