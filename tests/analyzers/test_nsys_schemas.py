"""Every schema of Nsight exports that is known from real files, 2020 to 2026: the same capture reads the same."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pytest

from analyzers import TraceError
from analyzers.readers import read
from tests.analyzers.nsys_drawing import (
    CALLS,
    COPIES,
    GATHER,
    GRAPH_LAUNCH,
    GRAPHS,
    KERNELS,
    PROCESS_A,
    RANGES,
    SETS,
    STEP,
    STRINGS,
    Row,
    Value,
    call,
    copy,
    graph,
    kernel,
    launch,
    nvtx,
)
from tests.analyzers.taken_apart import report_of
from tests.places import FACTS

COLUMNS = FACTS / "nsys_cols.json"
# table -> variants of it: its columns (name, type, not null), and the versions that have it so
Variants = Mapping[str, list[tuple[list[tuple[str, str, int]], list[str]]]]
# what was recorded, in microseconds; busy is 30 + 20 + 10 + 5 + 40
CAPTURE: dict[str, list[Row]] = {
    "StringIds": [{"id": key, "value": text} for key, text in STRINGS.items()],
    KERNELS: [kernel(10, 40, 1), kernel(50, 70, 2, name=GATHER, streamId=20)],
    COPIES: [copy(80, 90, 3)],
    SETS: [{name: value for name, value in copy(95, 100, 4).items() if name != "copyKind"}],
    GRAPHS: [graph(110, 150, 5)],
    CALLS: [*(launch(at, k + 1) for k, at in enumerate((2, 41, 71, 91))), call(101, 105, 5, name=GRAPH_LAUNCH)],
    RANGES: [nvtx(0, 160, STEP), nvtx(40, 60, "dispatch")],
    "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 3, "cudaId": 0, "pid": 5}],
    "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_700_000_000_000_000_000}],
    "META_DATA_EXPORT": [{"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "false"}],
    "DIAGNOSTIC_EVENT": [{"severity": 2, "text": "CUDA events were lost.", "globalPid": PROCESS_A}],
}
BUSY_US = {KERNELS: 50.0, COPIES: 10.0, SETS: 5.0, GRAPHS: 40.0}
DEFAULTS: dict[str, Value] = {"INTEGER": 0, "TEXT": "", "REAL": 0.0}


def _variants() -> Variants:
    found: Variants = json.loads(COLUMNS.read_text(encoding="utf-8"))
    return found


def _versions() -> list[str]:
    return sorted({version for variants in _variants().values() for _, versions in variants for version in versions})


def _write(path: Path, version: str) -> set[str]:
    """Writes the capture as this version does; returns its tables."""
    tables = set()
    with sqlite3.connect(path) as connection:
        for table, variants in _variants().items():
            columns = next((columns for columns, versions in variants if version in versions), None)
            if columns is None:
                continue
            tables.add(table)
            declared = (f'"{name}" {kind}{" NOT NULL" if required else ""}' for name, kind, required in columns)
            connection.execute(f'CREATE TABLE "{table}" ({", ".join(declared)})')
            for row in CAPTURE.get(table, []):
                values = [
                    row.get(name, DEFAULTS.get(kind, 0) if required else None) for name, kind, required in columns
                ]
                connection.execute(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})', values)
    connection.close()
    return tables


@pytest.mark.parametrize("version", _versions())
def test_a_capture_reads_the_same_in_every_version_that_holds_it(tmp_path: Path, version: str) -> None:
    path = tmp_path / "rank4.sqlite"
    tables = _write(path, version)
    if not tables & set(BUSY_US):  # the exports known of this version are of the host's work
        with pytest.raises(TraceError, match="no device events"):
            read(path)
        return
    report = report_of(path)
    span = report.span
    assert span.busy_us == sum(us for table, us in BUSY_US.items() if table in tables)
    assert span.graph_us == (40 if GRAPHS in tables else 0)
    assert span.communication_us == (20 if KERNELS in tables else 0)
    assert span.copy_us == sum(us for table, us in BUSY_US.items() if table in tables & {COPIES, SETS})
    assert report.rank == 4
    assert report.devices == [3 if "TARGET_INFO_CUDA_DEVICE" in tables else 0]
    assert ("nsys: CUDA events were lost." in report.warnings) is ("DIAGNOSTIC_EVENT" in tables)
    assert not report.coverage.dropped
    if {RANGES, CALLS, KERNELS} <= tables:
        assert [step.name for step in report.steps] == ["step#0"]
        assert span.communication_by_kind["ep_dispatch"].busy_us == 20
        assert {found.name: found.kernels for found in report.ranges} == {
            "step": 2 + (GRAPHS in tables),
            "dispatch": 1,
        }
