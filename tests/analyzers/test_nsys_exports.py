"""Nsight exports drawn by hand: what their rows mean, in whatever order and with whatever columns they come."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from analyzers import analyze
from analyzers.diagnosis import RangeTime
from analyzers.one_rank.breakdown import break_down
from analyzers.readers import read
from tests.analyzers.nsys_drawing import (
    CALLS,
    COPIES,
    GATHER,
    GRAPH_LAUNCH,
    GRAPHS,
    KERNELS,
    LAUNCH,
    MALLOC,
    PROCESS_A,
    RANGES,
    START_END,
    STEP,
    STRINGS,
    Row,
    call,
    copy,
    graph,
    kernel,
    launch,
    nvtx,
    write,
)


def _ranges(path: Path) -> dict[str, RangeTime]:
    (timeline,) = read(path)
    return {found.name: found for found in break_down(timeline).report().ranges}


def test_kernels_launches_and_ranges_become_one_timeline(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rank3.sqlite",
        {
            KERNELS: [kernel(70, 100, 2, name=GATHER), kernel(10, 40, 1)],
            CALLS: [launch(60, 2), launch(1, 1)],
            RANGES: [nvtx(0, 110, STEP), nvtx(55, None, "dispatch")],
        },
    )
    (timeline,) = read(path)
    (step,) = break_down(timeline).steps
    assert (timeline.format, timeline.rank, step.name) == ("nsys", 3, "step#0")
    assert (step.compute_us, step.exposed_communication_us) == (30, 30)
    assert step.communication_by_kind["ep_dispatch"].exposed_us == 30
    assert step.idle_by_cause.host_us > 0


def test_time_known_only_as_a_graph_launch_is_busy_and_counted_apart(tmp_path: Path) -> None:
    (timeline,) = read(write(tmp_path / "g.sqlite", {GRAPHS: [graph(10, 90, 1)]}))
    span = break_down(timeline).span
    assert (span.duration_us, span.busy_us, span.compute_us, span.graph_us) == (80, 80, 80, 80)


def test_a_capture_of_graph_launches_only_is_busy_and_never_host(tmp_path: Path) -> None:
    tables = {
        GRAPHS: [graph(100 * k, 100 * k + 99, k + 1) for k in range(10)],
        CALLS: [call(k, k + 1, k + 1, name=GRAPH_LAUNCH) for k in range(10)],
    }
    analysis = analyze([write(tmp_path / "graphs.sqlite", tables)])
    assert analysis.traces[0].span.busy_us == 990
    assert analysis.traces[0].span.idle_by_cause.host_us == 0
    assert analysis.diagnosis.wall != "host"


def test_of_many_kernels_of_one_graph_launch_only_the_first_can_be_the_hosts_delay(tmp_path: Path) -> None:
    tables = {
        KERNELS: [
            kernel(0, 10, 1),
            kernel(60, 70, 2, graphNodeId=11),
            kernel(80, 90, 2, graphNodeId=12),
            kernel(120, 130, 2, graphNodeId=13),
        ],
        CALLS: [launch(0, 1), call(50, 52, 2, name=GRAPH_LAUNCH)],
    }
    (timeline,) = read(write(tmp_path / "nodes.sqlite", tables))
    causes = break_down(timeline).span.idle_by_cause
    assert 40 <= causes.host_us <= 50
    assert causes.host_us + causes.sync_us + causes.unattributed_us == 90


def test_copies_are_distinguished_by_direction(tmp_path: Path) -> None:
    copies = [copy(0, 10, 1), copy(10, 30, 2, copyKind=2)]
    (timeline,) = read(write(tmp_path / "c.sqlite", {COPIES: copies}))
    breakdown = break_down(timeline)
    assert breakdown.measure(breakdown.work.from_host) == [10]
    assert breakdown.measure(breakdown.work.to_host) == [20]


def test_a_kernel_without_a_long_name_has_its_short_one(tmp_path: Path) -> None:
    kernels = [kernel(0, 10, 1), kernel(10, 20, 2, demangledName=None, shortName=GATHER)]
    (timeline,) = read(write(tmp_path / "short.sqlite", {KERNELS: kernels}))
    assert break_down(timeline).span.communication_us == 10


def test_the_order_of_rows_changes_nothing(tmp_path: Path) -> None:
    tables: dict[str, list[Row]] = {
        KERNELS: [kernel(10 * k, 10 * k + 4 + k % 5, k, name=1 + k % 2, streamId=7 + k % 2) for k in range(1, 60)],
        CALLS: [launch(10 * k - 9 + k % 7, k, thread=1 + k // 30) for k in range(1, 60)],
        RANGES: [nvtx(100 * k, 100 * k + 99, STEP) for k in range(6)],
    }
    reports = []
    for seed in range(3):
        for rows in tables.values():
            random.Random(seed).shuffle(rows)
        folder = tmp_path / str(seed)
        folder.mkdir()
        (timeline,) = read(write(folder / "t.sqlite", tables))
        reports.append(break_down(timeline).report())
    assert [r.span for r in reports[1:]] == [r.span for r in reports[:-1]]
    assert [r.steps for r in reports[1:]] == [r.steps for r in reports[:-1]]
    assert [r.ranges for r in reports[1:]] == [r.ranges for r in reports[:-1]]


@pytest.mark.parametrize("seed", range(3))
def test_a_call_held_twice_under_two_names_is_one_call(tmp_path: Path, seed: int) -> None:
    plain = {**STRINGS, 30: "cudaLaunchKernel"}
    tables: dict[str, list[Row]] = {
        KERNELS: [kernel(10, 20, 1), kernel(30, 40, 2)],
        CALLS: [{**launch(0, correlation), "nameId": name} for correlation in (1, 2) for name in (LAUNCH, 30)],
        RANGES: [nvtx(0, 5, "saxpy")],
    }
    random.Random(seed).shuffle(tables[CALLS])
    path = write(tmp_path / "twice.sqlite", tables, plain)
    (timeline,) = read(path)
    assert [timeline.calls.names[code] for code in timeline.calls.name] == [STRINGS[LAUNCH]] * 2
    assert [(lost.what, lost.count) for lost in timeline.dropped] == [("calls", 2)]
    assert _ranges(path)["saxpy"].kernels == 2


@pytest.mark.parametrize("unknown", [None, 0])
def test_a_kernel_without_correlation_has_no_launch(tmp_path: Path, unknown: int | None) -> None:
    tables = {
        KERNELS: [kernel(0, 10, unknown), kernel(50, 60, unknown)],
        CALLS: [call(20, 25, unknown, name=MALLOC), call(30, 31, unknown)],
    }
    (timeline,) = read(write(tmp_path / "unlinked.sqlite", tables))
    assert break_down(timeline).span.idle_by_cause.unattributed_us == 40


def test_a_ranges_name_is_its_own_text_or_a_registered_string_or_nothing(tmp_path: Path) -> None:
    tables = {
        KERNELS: [kernel(0, 10, 1)],
        RANGES: [
            nvtx(0, 3, "own"),
            nvtx(3, 5, STEP),
            nvtx(5, 9, None),
            nvtx(0, 4, 999, text=""),
            nvtx(0, 1, "mark", eventType=34),
        ],
    }
    found = _ranges(write(tmp_path / "names.sqlite", tables))
    assert {name: ranges.count for name, ranges in found.items()} == {"own": 1, "step": 1, "": 2}


def test_an_open_range_ends_with_the_capture_and_is_said(tmp_path: Path) -> None:
    tables = {KERNELS: [kernel(0, 10, 1)], CALLS: [launch(0, 1), launch(90, 2)], RANGES: [nvtx(2, None, "open")]}
    (timeline,) = read(write(tmp_path / "open.sqlite", tables))
    assert timeline.ranges.end_us.tolist() == [92]
    assert any("1 NVTX ranges (open) were open" in said for said in timeline.warnings)


def test_a_step_within_which_the_capture_ended_is_no_step_where_there_are_whole_ones(tmp_path: Path) -> None:
    tables = {
        KERNELS: [kernel(100 * k, 100 * k + 50, 1) for k in range(3)],
        RANGES: [nvtx(0, 100, STEP), nvtx(100, 200, STEP), nvtx(200, None, STEP)],
    }
    (timeline,) = read(write(tmp_path / "started.sqlite", tables))
    assert [step.duration_us for step in break_down(timeline).steps] == [100, 100]
    assert [(lost.what, lost.count) for lost in timeline.dropped] == [("steps", 1)]
    (alone,) = read(write(tmp_path / "alone.sqlite", {**tables, RANGES: [nvtx(200, None, STEP)]}))
    assert [step.duration_us for step in break_down(alone).steps] == [50]


def test_a_range_that_another_thread_ends_stays_with_the_one_that_began_it(tmp_path: Path) -> None:
    tables = {
        KERNELS: [kernel(10, 20, 1), kernel(20, 50, 2)],
        CALLS: [launch(1, 1), launch(5, 2, thread=2)],
        RANGES: [nvtx(0, 9, "phase", eventType=START_END, endGlobalTid=PROCESS_A | 2)],
    }
    found = _ranges(write(tmp_path / "startend.sqlite", tables))["phase"]
    assert (found.kernels, found.kernels_all_threads) == (1, 2)


def test_rows_that_end_before_they_start_are_left_out_and_counted(tmp_path: Path) -> None:
    tables = {
        KERNELS: [kernel(0, 10, 1), kernel(30, 20, 2), {**kernel(0, 5, 3), "start": None}],
        RANGES: [nvtx(9, 3, "x")],
    }
    (timeline,) = read(write(tmp_path / "negative.sqlite", tables))
    assert break_down(timeline).span.duration_us == 10
    assert {lost.what: lost.count for lost in timeline.dropped} == {"device events": 2, "ranges": 1}


def test_rows_are_read_page_by_page_over_gaps_in_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.readers.nsys_export.ROWS_AT_ONCE", 7)
    path = write(tmp_path / "gaps.sqlite", {KERNELS: [kernel(10 * k, 10 * k + 5, k + 1) for k in range(40)]})
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {KERNELS} SET rowid = rowid * 1000 WHERE rowid > 9 AND rowid % 2")
    (timeline,) = read(path)
    assert len(timeline.device.spans) == 40
    assert break_down(timeline).span.busy_us == 200


def test_time_of_nsys_itself_and_of_lazy_loading_is_listed_separately(tmp_path: Path) -> None:
    strings = {**STRINGS, 40: "CUPTI Buffer flush", 41: "Lazy Function Loading"}
    tables = {
        KERNELS: [kernel(0, 10, 1), kernel(200, 210, 2)],
        CALLS: [launch(0, 1), call(50, 190, 2)],
        "PROFILER_OVERHEAD": [call(20, 40, None, name=40)],
        "CUPTI_ACTIVITY_KIND_OVERHEAD": [call(60, 160, 0, name=41)],
    }
    (timeline,) = read(write(tmp_path / "overhead.sqlite", tables, strings))
    span = break_down(timeline).span
    assert span.idle_by_cause.unattributed_us == 20  # the profiler's own work is nobody's wall
    assert span.host_by_activity["module_loading"] == 100


def test_what_nsys_warns_of_is_shown_for_the_processes_that_are_analysed(tmp_path: Path) -> None:
    def said(text: str, severity: int, pid: int) -> Row:
        return {"severity": severity, "text": text, "globalPid": pid}

    diagnostics = [
        said("Not all CUDA events might\n have been collected.", 2, PROCESS_A),
        said("Not all CUDA events might\n have been collected.", 2, PROCESS_A),
        said("No CUDA events collected. Does the process use CUDA?", 2, 77 << 24),
        said("perf event paranoid level is 2", 2, 1 << 48),
        said("Profiling has started.", 1, 1 << 48),
    ]
    tables = {KERNELS: [kernel(0, 10, 1)], "DIAGNOSTIC_EVENT": diagnostics}
    (timeline,) = read(write(tmp_path / "said.sqlite", tables))
    assert timeline.warnings == (
        "nsys: Not all CUDA events might have been collected.",
        "nsys: 1 other warnings, in table DIAGNOSTIC_EVENT",
    )


def test_times_become_unix_time_unless_the_export_has_done_so(tmp_path: Path) -> None:
    epoch = {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_700_000_000_000_000_000}]}
    kernels = {KERNELS: [kernel(5, 10, 1)]}
    (plain,) = read(write(tmp_path / "plain.sqlite", {**kernels, **epoch}))
    assert plain.origin_us == 1_700_000_000_000_005
    done: dict[str, list[Row]] = {"META_DATA_EXPORT": [{"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "true"}]}
    (normalised,) = read(write(tmp_path / "done.sqlite", {**kernels, **epoch, **done}))
    assert normalised.origin_us == 5
