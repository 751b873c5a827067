"""Each step's own wall; steps left out as warm-up, and steps that differ from the average."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzers import analyze
from analyzers.diagnosis import Analysis, Wall
from analyzers.steps import warm_up
from tests.analyzers.drawing import ALL_TO_ALL, GEMM, Drawing


def _steps(folder: Path, *kinds: str) -> Analysis:
    """Analyzes steps of 1000 us that lose 300 us to the host or to communication; `slow` ones lose 2000 us to the
    host."""
    drawing, at = Drawing(), 0.0
    for number, kind in enumerate(kinds):
        lost = 2000 if kind == "slow" else 300
        end = at + 700 + lost
        drawing.step(number, at, end).kernel(GEMM, at + 10, at + 400, launched=at)
        next_launch = at + 20 if kind == "communication" else at + 395 + lost
        if kind == "communication":
            drawing.kernel(ALL_TO_ALL, at + 400, at + 700, launched=at + 15, stream=8)
        drawing.kernel(GEMM, at + 400 + lost, end - 5, launched=next_launch)
        drawing.call("cudaDeviceSynchronize", next_launch + 5, end)
        at = end
    return analyze([drawing.write(folder)])


def test_each_step_has_a_wall_of_its_own_and_the_span_has_none(tmp_path: Path) -> None:
    (trace,) = _steps(tmp_path, "host", "communication", "host").traces
    assert [step.wall for step in trace.steps] == [Wall.HOST, Wall.COMMUNICATION, Wall.HOST]
    assert all(step.because for step in trace.steps)
    assert trace.span.wall is None


def test_steps_that_differ_from_the_verdict_are_named(tmp_path: Path) -> None:
    diagnosis = _steps(tmp_path, "host", "communication", "host", "host").diagnosis
    assert diagnosis.wall is Wall.HOST
    assert diagnosis.because.endswith("1 of 4 single steps names communication (ProfilerStep#1)")


def test_one_long_step_does_not_name_the_wall_of_the_others(tmp_path: Path) -> None:
    diagnosis = _steps(tmp_path, "communication", "slow", "communication").diagnosis
    assert diagnosis.wall is Wall.UNDETERMINED
    assert diagnosis.because.startswith("host leads only on average")
    assert "2 of 3 single steps name communication" in diagnosis.because


def test_a_step_is_judged_by_the_rate_of_the_run_as_the_average_is(tmp_path: Path) -> None:
    outcome = {"model_tflops_per_gpu": 10.0, "attainable_tflops_per_gpu": 100.0}
    (tmp_path / "outcome.json").write_text(json.dumps(outcome))
    drawing = Drawing()
    for k in range(3):
        at = k * 1000.0
        drawing.step(k, at, at + 1000).range("recompute", at + 5, at + 9)
        drawing.kernel(GEMM, at + 10, at + 680, launched=at).kernel(GEMM, at + 680, at + 990, launched=at + 6)
        drawing.call("cudaDeviceSynchronize", at + 20, at + 1000)
    drawing.write(tmp_path)
    analysis = analyze([tmp_path])
    assert analysis.diagnosis.wall is Wall.COMPUTE
    assert {step.wall for step in analysis.traces[0].steps} == {Wall.COMPUTE}
    assert "by themselves" not in analysis.diagnosis.because


def test_a_first_step_that_is_much_slower_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    diagnosis = _steps(tmp_path, "slow", "communication", "communication", "communication").diagnosis
    host = diagnosis.finding(Wall.HOST)
    assert host is not None
    assert diagnosis.wall is Wall.COMMUNICATION
    assert host.share < 0.03
    assert diagnosis.because.endswith("Left out as warm-up: the first step (2.7 ms, later ones 1.0 ms)")


@pytest.mark.parametrize(
    ("durations", "left_out"),
    [
        ([100, 100, 100], 0),
        ([180, 100, 100], 1),
        ([400, 200, 100, 100], 1),  # two slow steps in a row may be usual ones
        ([180, 100], 0),  # either may be the usual one
        ([100, 180, 100, 100], 0),  # a pause, not a warm-up
        ([], 0),
    ],
)
def test_a_step_at_the_start_is_warm_up_where_later_ones_are_much_shorter(
    durations: list[float], left_out: int
) -> None:
    assert warm_up(durations) == left_out


def test_the_bound_on_the_speed_follows_from_the_share_that_a_wall_takes(tmp_path: Path) -> None:
    diagnosis = _steps(tmp_path, "communication", "communication").diagnosis
    finding = diagnosis.walls[0]
    assert finding.share == pytest.approx(0.3, abs=0.01)
    assert finding.speedup_bound == pytest.approx(1000 / 700 - 1, abs=0.02)
    assert "(steps 43 % faster)" in diagnosis.because
