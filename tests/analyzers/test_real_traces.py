"""Traces that other people recorded on real GPUs, against figures computed apart from this program."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from analyzers import analyze
from analyzers.diagnosis import Analysis, Partition, Wall
from analyzers.intervals import union
from analyzers.one_rank.breakdown import break_down
from analyzers.readers import read
from tests.places import TRACES, WITHOUT_SHARED
from tests.rows import filled

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=WITHOUT_SHARED)


def _rows() -> list[dict[str, str]]:
    index = TRACES / "index.csv"
    if not index.is_file():
        return []
    with index.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


KINETO = [row for row in _rows() if row["file"].endswith(".json.gz")]
NSYS = [row for row in _rows() if row["file"].endswith(".sqlite")]
# the references count NCCL, RCCL and EP libraries; torch's own symmetric-memory all-reduce is communication as well
NOT_IN_REFERENCE = "multimem_all_reduce"


def _figures(p: Partition) -> dict[str, float]:
    return {
        "span": p.duration_us,
        "busy": p.busy_us,
        "idle": p.idle_us,
        "compute": p.compute_us,
        "comm": p.communication_us,
        "exposed_comm": p.exposed_communication_us,
        "mem": p.copy_us,
        "exposed_mem": p.exposed_copy_us,
    }


def _expect(partition: Partition, reference: dict[str, float], moved_us: float = 0.0) -> None:
    expected = dict(reference)
    expected["compute"] -= moved_us
    expected["comm"] += moved_us
    expected["exposed_comm"] += moved_us
    for name, value in _figures(partition).items():
        assert value == pytest.approx(expected[name], rel=1e-3, abs=1.0), name


@pytest.mark.parametrize("row", KINETO, ids=lambda row: row["file"])
def test_kineto_spans_and_steps_match_the_reference(row: dict[str, str]) -> None:
    (timeline,) = read(TRACES / row["file"])
    breakdown = break_down(timeline)
    events = timeline.device.spans
    other = events.take(events.where(lambda name: NOT_IN_REFERENCE in name))
    _expect(breakdown.span, json.loads(row["reference"]), union(other.start_us, other.end_us).total_us)
    steps: dict[str, Any] = json.loads(row["reference_per_step"])
    marked = [] if breakdown.taken else breakdown.steps  # the reference has marked steps only
    assert [s.name for s in marked] == list(steps)
    for step in marked:
        _expect(step, steps[step.name])
    assert breakdown.work.coverage.device_time_classified > 0.98


@pytest.mark.parametrize("row", NSYS, ids=lambda row: row["file"])
def test_nsight_spans_match_the_reference(row: dict[str, str]) -> None:
    (timeline,) = read(TRACES / row["file"])
    span = break_down(timeline).span
    reference = json.loads(row["reference"])
    found = {
        "span_ms": span.duration_us,
        "busy_ms": span.busy_us,
        "idle_ms": span.idle_us,
        "kernel_ms": span.compute_us,
        "mem_ms": span.copy_us,
    }
    for name, value in found.items():
        assert value / 1000 == pytest.approx(reference[name], rel=1e-3, abs=1e-3), name


# this export was post-processed and holds each call twice: the reference counts each kernel twice as well
CALLS_HELD_TWICE = ("nsys_mpi_a100_2022.sqlite",)


@pytest.mark.parametrize("row", [row for row in NSYS if '"nvtx"' in row["reference"]], ids=lambda row: row["file"])
def test_nvtx_ranges_and_what_they_launched_match_the_reference(row: dict[str, str]) -> None:
    (timeline,) = read(TRACES / row["file"])
    found = {ranges.name: ranges for ranges in break_down(timeline).report().ranges}
    reference = json.loads(row["reference"])
    copies = 2 if row["file"] in CALLS_HELD_TWICE else 1
    for name, (count, host_ms) in filled(reference["nvtx"].items()):
        assert found[name].count == count
        assert found[name].host_us / 1000 == pytest.approx(host_ms, rel=1e-3, abs=1e-3)
    for name, (kernels, device_ms) in reference.get("nvtx_gpu", {}).items():
        assert found[name].kernels * copies == kernels
        assert found[name].device_us * copies / 1000 == pytest.approx(device_ms, rel=1e-3, abs=1e-3)


def test_backward_has_the_kernels_that_autograds_thread_launched() -> None:
    (timeline,) = read(TRACES / "nsys_train_3070ti_nvtx.sqlite")
    found = {ranges.name: ranges for ranges in break_down(timeline).report().ranges}
    assert found["Forward"].kernels_all_threads == found["Forward"].kernels == 10_380
    assert (found["Backward"].kernels, found["Backward"].kernels_all_threads) == (507, 6_642)
    assert found["Run Benchmark"].kernels_all_threads == 17_032  # every kernel in the range


def _analysis(*names: str) -> Analysis:
    return analyze([TRACES / name for name in names])


@pytest.mark.parametrize(
    ("name", "wall"),
    [
        ("bert_small_h100.json.gz", Wall.HOST),
        ("moe_b200_eager.json.gz", Wall.HOST),
        ("resnet50_w0.json.gz", Wall.HOST),
        ("ddp_v100x2_rank1.json.gz", Wall.HOST),
        ("compute_v100_ns.json.gz", Wall.COMPUTE),
        ("moe_b300_large_capacity.json.gz", Wall.COMPUTE),
        ("vllm_moe_graph_decode.json.gz", Wall.COMPUTE),
        ("nsys_gpt2.7b_a100_clean.sqlite", Wall.COMPUTE),
        ("nsys_small_a100_hostbound.sqlite", Wall.HOST),
    ],
)
def test_the_wall_is_the_one_the_traces_owners_describe(name: str, wall: Wall) -> None:
    assert _analysis(name).diagnosis.wall is wall


def test_loading_data_is_named_where_the_input_is_the_bottleneck() -> None:
    host = _analysis("resnet50_w0.json.gz").diagnosis.finding(Wall.HOST)
    assert host is not None
    assert max(host.parts, key=lambda part: host.parts[part]) == "data_loading"


def test_two_ranks_of_one_job_are_diagnosed_together() -> None:
    analysis = _analysis("dlrm_128_rank1.json.gz", "dlrm_128_rank0.json.gz")
    assert [trace.rank for trace in analysis.traces] == [0, 1]
    assert all(len(trace.steps) == 2 for trace in analysis.traces)
