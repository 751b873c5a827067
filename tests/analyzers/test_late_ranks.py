"""Waiting traced to its cause: the cause of a verdict without a wall, and a host that is late on some ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzers import Wall, analyze
from analyzers.diagnosis import Analysis, Cause
from tests.analyzers.drawing import ALL_TO_ALL, GEMM
from tests.analyzers.drawn_jobs import EXPERTS, LAUNCH_AHEAD_US, DrawnJob, nccl, uneven
from tests.analyzers.moe_steps.late import CAUSES, UNTRACED, Found, find_cause
from tests.draws import few

SEEDS = (range(1), range(1, 6))  # per cause: those of make test, and those that make test-full adds


def _cause(analysis: Analysis) -> Cause:
    assert analysis.diagnosis.cause is not None, analysis.diagnosis
    return analysis.diagnosis.cause


@pytest.mark.parametrize("seeds", few(SEEDS, 1), ids=str)
def test_what_makes_ranks_late_is_named_and_never_another_thing(seeds: range) -> None:
    found = [find_cause(name, seed) for name in CAUSES if name != "untraced" for seed in seeds]
    said = "\n".join(str(one) for one in found if not one.right)
    assert [one for one in found if not one.right and not one.abstained] == [], said
    assert sum(one.right for one in found) >= 0.9 * len(found), said


@pytest.mark.parametrize("seed", few((9_000_000, 9_000_003, 9_000_010, 9_000_019), 2))
def test_a_device_without_a_trace_that_is_as_late_in_every_layer_is_no_slow_network(seed: int) -> None:
    found = find_cause("untraced", seed)
    assert found.late.cause == UNTRACED
    assert found.late.job.slow_compute, "one device is slower"
    assert found.diagnosis.wall is Wall.UNDETERMINED, str(found)
    assert found.right, str(found)
    assert found.diagnosis.cause is not None
    assert found.diagnosis.headline == "communication, or waiting for ranks that were not traced"
    assert found.late.traced is not None
    (late,) = set(range(found.late.job.ranks)) - found.late.traced
    assert late in found.diagnosis.cause.trace_ranks


def test_a_case_is_right_only_if_cause_and_ranks_are() -> None:
    one = find_cause("slow_device", 0)
    assert one.right
    other = Found(
        name=one.name, seed=0, late=find_cause("busy_experts", 0).late, diagnosis=one.diagnosis, share=one.share
    )
    assert not other.right
    assert not other.abstained


def _late_by_turns(job: DrawnJob, pause_us: float) -> list[list[int]]:
    """Lengthens the compute of rank L mod R in layer L by `pause_us`; returns [rank, layer] of every layer."""
    moved = []
    for layer in range(job.compute_us.shape[2]):
        job.compute_us[layer % job.ranks, :, layer] += pause_us
        moved.append([layer % job.ranks, layer])
    return moved


def test_hosts_that_are_late_by_turns_are_host_time_and_not_waiting(tmp_path: Path) -> None:
    """Each rank waits for the others' hosts more than it is held up by its own."""
    job = DrawnJob(compute_us=uneven(4), groups=[range(4)])
    moved, pause = _late_by_turns(job, 400.0), 400.0
    for drawing in job.drawings():
        kernels = [event for event in drawing.events if event["name"] == GEMM]
        launches = {e["args"]["correlation"]: e for e in drawing.events if e["cat"] == "cuda_runtime"}
        for rank, layer in moved:
            for event in kernels[layer::12] if rank == drawing.rank else ():
                event["ts"], event["dur"] = event["ts"] + pause, event["dur"] - pause
                launches[event["args"]["correlation"]]["ts"] = event["ts"] - LAUNCH_AHEAD_US
        drawing.write(tmp_path)
    analysis = analyze([tmp_path])
    assert analysis.diagnosis.wall is Wall.HOST
    found = analysis.diagnosis.finding(Wall.HOST)
    assert found is not None
    assert found.recoverable_us == pytest.approx(12 * pause, rel=0.25)  # its own three pauses and the others' nine
    assert any("waiting for ranks whose hosts are late" in line for line in found.evidence)
    assert _cause(analysis).name == "late_host"
    assert _cause(analysis).headline == "host on every rank by turns"
    assert sorted(analysis.diagnosis.ranks) == [0, 1, 2, 3]


def test_experts_that_are_busiest_by_turns_are_their_load(tmp_path: Path) -> None:
    compute = np.full((4, 3, 12), 200.0)
    for layer in range(12):
        compute[layer % 4, :, layer] *= 3
    analysis = DrawnJob(compute_us=compute, groups=[range(4)], kernel=EXPERTS).analyze(tmp_path)
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    cause = _cause(analysis)
    assert (cause.name, sorted(cause.ranks)) == ("experts_load", [0, 1, 2, 3])
    assert cause.headline == "imbalance: experts of every rank by turns"
    assert analysis.diagnosis.headline == cause.headline
    assert next(iter(analysis.diagnosis.waits)) == "experts_load"
    assert analysis.diagnosis.waits["experts_load"] == pytest.approx(cause.lost_us, rel=0.1)


def _exchanging(job: DrawnJob, folder: Path, received: dict[int, int]) -> Analysis:
    """Analyzes the job with an exchange before each combine, in which rank R gets `received[R]` elements."""
    for drawing in job.drawings():
        arguments = nccl("0", range(job.ranks))
        size: dict[str, Any] = {
            "In msg nelems": 1000,
            "Out msg nelems": received.get(drawing.rank, 1000),
            "dtype": "BFloat16",
        }
        for event in [e for e in drawing.events if e["name"] == EXPERTS]:
            end = event["ts"]
            drawing.kernel(ALL_TO_ALL, end - 9.0, end - 1.0, launched=end - 30.0, stream=9, **arguments, **size)
        drawing.write(folder)
    return analyze([folder])


def test_experts_that_take_longer_with_as_many_tokens_are_a_slow_device(tmp_path: Path) -> None:
    job = DrawnJob(compute_us=uneven(4, slow={2: 1.8}), groups=[range(4)], kernel=EXPERTS)
    more = _cause(_exchanging(job, tmp_path / "more", {2: 1800}))
    assert more.name == "experts_load"
    assert "with 1.8x the tokens" in more.evidence[0]
    assert _cause(_exchanging(job, tmp_path / "same", {})).name == "slow_device"


def test_ranks_that_only_others_traces_could_explain_are_asked_for(tmp_path: Path) -> None:
    compute = uneven(8)
    compute[5, :, ::2] *= 4
    arguments = {0: nccl("5", range(8))}
    job = DrawnJob(compute_us=compute, groups=[range(8)], transfer_us=5.0, drawn=[0, 1], arguments=arguments)
    analysis = job.analyze(tmp_path)
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    cause = _cause(analysis)
    assert cause.name == UNTRACED
    assert cause.trace_ranks == [2, 3, 4, 5, 6, 7]
    assert "ranks that were not traced" in analysis.diagnosis.headline


def test_a_rank_that_waits_for_a_late_one_passes_the_cause_on(tmp_path: Path) -> None:
    """Ranks 0 and 1 exchange in each layer, and at the end all four meet: rank 1's experts held up rank 0 as well."""
    compute = uneven(4, steps=1, slow={1: 2.5})
    drawings = DrawnJob(compute_us=compute, groups=[(0, 1), (2, 3)], kernel=EXPERTS).drawings()
    steps = [next(e for e in drawing.events if e["name"] == "ProfilerStep#0") for drawing in drawings]
    ends = [step["ts"] + step["dur"] for step in steps]
    for drawing, step, end in zip(drawings, steps, ends, strict=True):
        step["dur"] = max(ends) + 60.0 - step["ts"]
        arguments = nccl("0", range(4), collective="allreduce")
        drawing.kernel("ncclDevKernel_AllReduce", end, max(ends) + 60, launched=end - 9, stream=20, **arguments)
        drawing.write(tmp_path)
    cause = _cause(analyze([tmp_path]))
    assert (cause.name, cause.ranks) == ("experts_load", [1])
