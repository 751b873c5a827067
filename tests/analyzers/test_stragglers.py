"""Ranks that the others wait for: which, how late, to what, and in which part of their step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analyzers import Wall, analyze
from analyzers.diagnosis import Analysis
from tests.analyzers.drawing import GEMM
from tests.analyzers.drawn_jobs import EXPERTS, LAUNCH_AHEAD_US, DrawnJob, uneven


def _evidence(analysis: Analysis) -> str:
    found = analysis.diagnosis.finding(Wall.COMMUNICATION)
    assert found is not None
    return "\n".join(found.evidence)


def test_unevenly_loaded_experts_are_named_with_what_balancing_gives_back(tmp_path: Path) -> None:
    job = DrawnJob(compute_us=uneven(4, slow={2: 1.8}), groups=[range(4)], kernel=EXPERTS)
    analysis = job.analyze(tmp_path)
    late = analysis.ranks[2]
    assert (late.late_to, late.late_in) == ("ep_combine", "experts")
    assert late.expert_compute_us > 1.6 * analysis.ranks[0].expert_compute_us
    assert "rank 2 arrives 2.3 ms late to EP combine in every step: it spends 4.7 ms in experts, 2.4 ms" in _evidence(
        analysis
    )
    assert (
        "the busiest rank's experts compute 1.6x what the mean rank's do (load imbalance): balancing them recovers "
        "at most 32 %"
    ) in _evidence(analysis)
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    assert "waiting for slower ranks" in analysis.diagnosis.because
    assert "rank 2 arrives 2.3 ms late" in analysis.diagnosis.because
    assert {step.wall for trace in analysis.traces for step in trace.steps} == {Wall.UNDETERMINED}


def test_a_rank_that_loads_data_is_late_for_its_host(tmp_path: Path) -> None:
    """In each step the work of layer 6 is launched 3 ms late on rank 1, while a batch is fetched."""
    job = DrawnJob(compute_us=uneven(2), groups=[(0, 1)])
    job.compute_us[1, :, 6] += 3000.0
    drawings = job.drawings()
    kernels = [e for e in drawings[1].events if e["name"] == job.kernel]
    launches = {e["args"]["correlation"]: e for e in drawings[1].events if e["cat"] == "cuda_runtime"}
    for event in kernels[6::12]:
        begin = event["ts"]
        launch = launches[event["args"]["correlation"]]
        event["ts"], event["dur"], launch["ts"] = begin + 3000.0, event["dur"] - 3000.0, begin + 3000 - LAUNCH_AHEAD_US
        drawings[1].range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, launch["ts"] - 1)
    for drawing in drawings:
        drawing.write(tmp_path)
    late = analyze([tmp_path]).ranks[1]
    assert (late.late_to, late.late_in) == ("ep_combine", "host:data_loading")
    assert 2900 < late.late_us < 3300


def test_ranks_that_are_late_by_turns_are_imbalance_and_none_is_the_late_one(tmp_path: Path) -> None:
    compute = np.full((4, 3, 12), 200.0)
    for layer in range(12):
        compute[layer % 4, :, layer] *= 3
    analysis = DrawnJob(compute_us=compute, groups=[range(4)]).analyze(tmp_path)
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    assert "waiting for slower ranks takes" in analysis.diagnosis.because
    own = [rank.own_us for rank in analysis.ranks]
    assert max(own) < 1.01 * min(own)


def test_even_ranks_are_on_time(tmp_path: Path) -> None:
    analysis = DrawnJob(compute_us=np.full((4, 3, 12), 200.0), groups=[range(4)]).analyze(tmp_path)
    assert all(rank.late_us == 0.0 and rank.late_in is None for rank in analysis.ranks)
    assert "late" not in _evidence(analysis)


def test_a_rank_late_in_one_step_only_is_late_on_average(tmp_path: Path) -> None:
    compute = uneven(3)
    compute[1, 2] *= 2
    analysis = DrawnJob(compute_us=compute, groups=[range(3)]).analyze(tmp_path)
    assert "rank 1 arrives" in _evidence(analysis)
    assert "per step on average" in _evidence(analysis)


def test_experts_that_are_busiest_on_another_rank_in_each_step_are_imbalance_too(tmp_path: Path) -> None:
    compute = uneven(3)
    for rank in range(3):
        compute[rank, rank] *= 2
    analysis = DrawnJob(compute_us=compute, groups=[range(3)], kernel=EXPERTS).analyze(tmp_path)
    assert "the busiest rank's experts compute 1.5x what the mean rank's do" in _evidence(analysis)


def _with_dense_work(job: DrawnJob, folder: Path, times: float) -> Analysis:
    """Turns half of each rank's compute into dense GEMMs, on rank 1 `times` that half."""
    for drawing in job.drawings():
        for event in list(drawing.events):
            if event["name"] == EXPERTS:
                dense = event["dur"] / 2 if drawing.rank != 1 else event["dur"] / 2 * times
                event["dur"] -= dense
                drawing.kernel(GEMM, event["ts"] + event["dur"], event["ts"] + event["dur"] + dense, launched=0.0)
        drawing.write(folder)
    return analyze([folder])


def test_a_device_that_is_slower_at_everything_has_no_imbalance_of_experts(tmp_path: Path) -> None:
    job = DrawnJob(compute_us=uneven(4, slow={1: 1.6}), groups=[range(4)], kernel=EXPERTS)
    slower = _with_dense_work(job, tmp_path / "slower", 1.0)
    assert slower.ranks[1].late_in == "compute"
    assert "a slower device?" in _evidence(slower)
    assert "imbalance)" not in _evidence(slower)
    assert _with_dense_work(job, tmp_path / "busier", 0.6).ranks[1].late_in == "experts"
