"""A stretch of a trace: by a range's name, by time, with a marker of one's own; and ranges that are taken for steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzers import TraceError, Wall, analyze
from analyzers.diagnosis import Analysis, Stretch
from analyzers.lanes import diagnosed, lanes_of
from analyzers.steps import REPEATS
from tests.analyzers.drawing import GEMM, GLOO_THREAD, Drawing
from tests.places import TRACES, WITHOUT_SHARED

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=WITHOUT_SHARED)
INIT = "Memcpy HtoD (Pageable -> Device)"


def looped(*, name: str = "lap {}", count: int = 4, length: float = 1000.0) -> Drawing:
    """Draws 2 ms of copying the model in, then a loop with a GEMM in the first half of each lap."""
    drawing = Drawing(rank=0, world_size=1).range("init_model", 0, 2000)
    drawing.copy(INIT, 10, 1900, launched=5)
    drawing.range("benchmark_loop", 2000, 2000 + count * length)
    for k in range(count):
        at = 2000 + k * length
        drawing.range(name.format(k), at, at + 0.98 * length)
        drawing.kernel(GEMM, at + 10, at + length / 2, launched=at + 2)
    return drawing


def judged(folder: Path, drawing: Drawing, stretch: Stretch) -> Analysis:
    return analyze([drawing.write(folder)], stretch)


def test_a_range_is_judged_without_what_came_before_it(tmp_path: Path) -> None:
    analysis = judged(tmp_path, looped(count=1, length=4000), Stretch(range="benchmark_loop"))
    (trace,) = analysis.traces
    (step,) = trace.steps
    assert step.duration_us == 4000
    assert step.copy_us == 0
    assert trace.span.start_us == 2010
    assert {kernel.name for kernel in trace.kernels} == {GEMM}
    assert "init_model" not in {one.name for one in trace.ranges}


def test_marked_steps_inside_of_a_range_stay_its_steps(tmp_path: Path) -> None:
    drawing = looped().step(0, 500, 1500).step(1, 2000, 3000).step(2, 3000, 4000)
    (trace,) = judged(tmp_path, drawing, Stretch(range="benchmark_loop")).traces
    assert [step.name for step in trace.steps] == ["ProfilerStep#1", "ProfilerStep#2"]


def test_a_marker_of_ones_own_marks_the_steps_numbered_or_not(tmp_path: Path) -> None:
    drawing = looped().step(0, 0, 6000)
    (trace,) = judged(tmp_path, drawing, Stretch(step_marker="lap")).traces
    assert [step.name for step in trace.steps] == [f"lap {k}" for k in range(4)]
    assert trace.steps_marked


def test_a_time_is_counted_from_the_first_work_of_the_device(tmp_path: Path) -> None:
    (trace,) = judged(tmp_path, looped(), Stretch(from_us=2990.0, to_us=5000.0)).traces
    assert (trace.span.start_us, trace.coverage.kernels) == (3010.0, 2)
    with pytest.raises(TraceError, match=r"has no work from 1 to 2 s"):
        judged(tmp_path, looped(), Stretch(from_us=1e6, to_us=2e6))


def test_an_unknown_name_is_answered_with_those_there_are(tmp_path: Path) -> None:
    for stretch in (Stretch(range="loop"), Stretch(step_marker="loop")):
        with pytest.raises(TraceError, match=r"has no range 'loop'(.|\n)*lap \(4\), init_model \(1\)"):
            judged(tmp_path, looped(), stretch)


@pytest.mark.parametrize("name", ["lap {}", "lap"])
def test_ranges_that_repeat_are_taken_for_steps_and_that_is_said(tmp_path: Path, name: str) -> None:
    analysis = judged(tmp_path, looped(name=name, count=6), Stretch())
    (trace,) = analysis.traces
    assert len(trace.steps) == 6
    assert all(step.duration_us == pytest.approx(980) for step in trace.steps)
    assert not trace.steps_marked
    assert any("the 6 ranges 'lap' are used as steps" in warning for warning in trace.warnings)
    assert analysis.diagnosis.wall is Wall.HOST


@pytest.mark.parametrize(
    "drawing",
    [
        looped(count=REPEATS - 1),
        looped(count=4, length=200),  # most of the trace is something else
        looped().step(0, 0, 6000),  # steps are marked
        Drawing().range("a", 0, 100).range("a", 50, 150).range("a", 120, 300).kernel(GEMM, 10, 290, launched=0),
    ],
    ids=["too few", "too short", "marked", "overlapping"],
)
def test_other_ranges_are_not_taken_for_steps(tmp_path: Path, drawing: Drawing) -> None:
    (trace,) = judged(tmp_path, drawing, Stretch()).traces
    assert [step for step in trace.steps if not step.name.startswith("ProfilerStep")] == []


def test_lanes_are_of_the_stretch_too(tmp_path: Path) -> None:
    (trace,) = judged(tmp_path, looped(), Stretch(range="benchmark_loop", step_marker="lap")).traces
    (step, *_) = trace.steps
    found = lanes_of(diagnosed(trace), start_us=step.start_us, end_us=step.end_us)
    assert found.duration_us == 980
    assert INIT not in found.names


def test_a_stretch_of_a_rank_on_cpus_is_judged_alone(tmp_path: Path) -> None:
    drawing = Drawing(on_cpu=True).step(1, 0, 1000).range("evaluate", 1000, 2000)
    drawing.operator("aten::mm", 10, 400).range("gloo:all_to_all", 400, 900, thread=GLOO_THREAD)
    drawing.operator("aten::bmm", 1100, 1900)
    (trace,) = judged(tmp_path, drawing, Stretch(range="evaluate")).traces
    (step,) = trace.steps
    assert (step.duration_us, step.compute_us, step.communication_us) == (1000, 800, 0)


@needs_traces
def test_the_loop_of_a_real_benchmark_is_judged_without_making_its_model() -> None:
    path = TRACES / "nsys_gpt2.7b_a100_nvtx.sqlite"
    assert analyze([path]).diagnosis.wall is Wall.UNDETERMINED
    analysis = analyze([path], Stretch(range="benchmark_loop"))
    assert analysis.diagnosis.wall is Wall.COMPUTE
    assert analysis.traces[0].steps[0].compute_us > 0.99 * analysis.traces[0].steps[0].duration_us
