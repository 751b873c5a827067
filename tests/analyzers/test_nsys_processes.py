"""Several processes in one Nsight export, several exports of one job: whose work it is, on which GPU, at what time."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzers import TraceError, analyze
from analyzers.one_rank.breakdown import break_down
from analyzers.readers import read
from tests.analyzers.nsys_drawing import (
    CALLS,
    COPIES,
    GATHER,
    KERNELS,
    PROCESS_A,
    PROCESS_B,
    RANGES,
    STEP,
    Row,
    copy,
    kernel,
    launch,
    nvtx,
    write,
)


def _environment(*values: str) -> list[Row]:
    return [{"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": value} for value in values]


def _ranks(path: Path) -> list[int | None]:
    return [timeline.rank for timeline in read(path)]


def test_the_same_correlation_id_in_two_processes_is_two_launches(tmp_path: Path) -> None:
    tables = {
        KERNELS: [kernel(at, at + 10, 1 + at // 50, process=p) for p in (PROCESS_A, PROCESS_B) for at in (0, 50)],
        CALLS: [
            launch(0, 1),
            launch(40, 2),
            launch(0, 1, process=PROCESS_B),
            launch(5, 2, process=PROCESS_B),
        ],
    }
    late, early = (break_down(t).span.idle_by_cause for t in read(write(tmp_path / "two.sqlite", tables)))
    assert late.host_us >= 30
    assert (early.host_us, early.sync_us) == (0, 40)


def test_ranges_stay_with_their_process(tmp_path: Path) -> None:
    tables = {
        KERNELS: [kernel(0, 10, 1), kernel(0, 20, 1, process=PROCESS_B)],
        CALLS: [launch(0, 1), launch(0, 1, process=PROCESS_B)],
        RANGES: [nvtx(0, 5, "a"), nvtx(0, 5, "b", process=PROCESS_B)],
    }
    reports = [break_down(t).report() for t in read(write(tmp_path / "two.sqlite", tables))]
    assert [[(r.name, r.device_us) for r in report.ranges] for report in reports] == [[("a", 10)], [("b", 20)]]


def test_the_gpu_of_a_device_number_is_looked_up_for_each_process(tmp_path: Path) -> None:
    gpus: list[Row] = [{"gpuId": 6, "cudaId": 0, "pid": 5}, {"gpuId": 2, "cudaId": 0, "pid": 6}]
    kernels = [kernel(0, 10, 1), kernel(0, 10, 1, process=PROCESS_B)]
    path = write(tmp_path / "g.sqlite", {KERNELS: kernels, "TARGET_INFO_CUDA_DEVICE": gpus})
    assert [timeline.device_index for timeline in read(path)] == [6, 2]


def test_a_process_that_only_copies_is_no_rank(tmp_path: Path) -> None:
    tables = {KERNELS: [kernel(0, 10, 1)], COPIES: [copy(0, 90, 1, process=PROCESS_B)]}
    (timeline,) = read(write(tmp_path / "loader.sqlite", tables))
    assert break_down(timeline).span.duration_us == 10
    assert [(lost.what, lost.count) for lost in timeline.dropped] == [("copies", 1)]


def test_a_copy_on_another_device_makes_no_timeline_of_it(tmp_path: Path) -> None:
    tables = {KERNELS: [kernel(10, 20, 1, deviceId=3)], COPIES: [copy(0, 5, 2, deviceId=0)]}
    (timeline,) = read(write(tmp_path / "peer.sqlite", tables))
    assert (timeline.device_index, len(timeline.device.spans)) == (3, 2)


def test_mpi_gives_the_rank_of_each_process(tmp_path: Path) -> None:
    kernels = [kernel(0, 10, 1), kernel(0, 10, 1, process=PROCESS_B)]
    mpi: list[Row] = [{"globalTid": PROCESS_A | 9, "rank": 12}, {"globalTid": PROCESS_B | 9, "rank": 11}]
    assert _ranks(write(tmp_path / "mpi.sqlite", {KERNELS: kernels, "MPI_RANKS": mpi})) == [12, 11]


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        (('RANK="5"', 'LOCAL_RANK="1"'), 5),
        (('OMPI_COMM_WORLD_RANK="7"', 'PMIX_RANK="8"'), 7),
        (('LOCAL_RANK="1"', 'RANK=""'), 2),
        ((), 2),
    ],
)
def test_the_environment_of_a_single_process_gives_its_rank_before_the_files_name(
    tmp_path: Path, values: tuple[str, ...], rank: int
) -> None:
    tables: dict[str, list[Row]] = {KERNELS: [kernel(0, 10, 1)], "META_DATA_CAPTURE": _environment(*values)}
    assert _ranks(write(tmp_path / "rank2.sqlite", tables)) == [rank]


def test_the_environment_of_a_launcher_gives_no_rank_of_the_processes_it_started(tmp_path: Path) -> None:
    kernels = [kernel(0, 10, 1), kernel(0, 10, 1, process=PROCESS_B)]
    tables: dict[str, list[Row]] = {KERNELS: kernels, "META_DATA_CAPTURE": _environment('RANK="0"')}
    assert _ranks(write(tmp_path / "rank0.sqlite", tables)) == [None, None]


def test_processes_of_unknown_rank_are_the_ranks_of_one_job_in_their_order(tmp_path: Path) -> None:
    kernels = [kernel(0, 10, 1, process=PROCESS_B), kernel(0, 20, 1)]
    traces = analyze([write(tmp_path / "node.sqlite", {KERNELS: kernels})]).traces
    assert [(trace.rank, trace.span.busy_us) for trace in traces] == [(0, 20), (1, 10)]
    assert all(any("trace does not name its rank" in said for said in trace.warnings) for trace in traces)


def test_two_exports_of_one_rank_are_refused(tmp_path: Path) -> None:
    tables: dict[str, list[Row]] = {KERNELS: [kernel(0, 10, 1)], "META_DATA_CAPTURE": _environment('RANK="1"')}
    paths = [write(tmp_path / name, tables) for name in ("a.sqlite", "b.sqlite")]
    with pytest.raises(TraceError, match="is of rank 1, as is"):
        analyze(paths)


def test_an_nsys_report_is_not_read_again_next_to_its_export(tmp_path: Path) -> None:
    write(tmp_path / "run.sqlite", {KERNELS: [kernel(0, 10, 1)]})
    (tmp_path / "run.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 2024\n")
    assert [Path(trace.path).name for trace in analyze([tmp_path]).traces] == ["run.sqlite"]


def test_exports_of_a_folder_are_aligned_by_the_start_of_their_sessions(tmp_path: Path) -> None:
    """Rank 1 arrives at the gather 30 us late: rank 0 waits that long, though its session started a second earlier."""
    for rank, (epoch_s, arrival) in enumerate(((1_700_000_001, 20), (1_700_000_002, -999_950))):
        step = arrival - 20 if rank == 0 else arrival - 50
        shift = 2_000_000  # times of a session are not negative
        tables: dict[str, list[Row]] = {
            KERNELS: [
                kernel(shift + step, shift + arrival, 1),
                kernel(shift + arrival, shift + step + 60, 2, name=GATHER),
            ],
            CALLS: [launch(shift + step, 1), launch(shift + step + 2, 2)],
            RANGES: [nvtx(shift + step - 1, shift + step + 61, STEP)],
            "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": epoch_s * 10**9}],
        }
        write(tmp_path / f"rank{rank}.sqlite", tables)
    analysis = analyze([tmp_path])
    assert [trace.rank for trace in analysis.traces] == [0, 1]
    timelines = [read(tmp_path / f"rank{rank}.sqlite")[0] for rank in (0, 1)]
    starts = [t.origin_us + t.device.spans.start_us[1] for t in timelines]
    assert starts[1] - starts[0] == pytest.approx(30, abs=0.5)
