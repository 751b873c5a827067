"""Traces that hold some of a step's micro batches: the diagnosis is that of the whole step."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers import analyze
from analyzers.diagnosis import Analysis, Partition, TraceReport
from analyzers.intervals import union
from analyzers.lanes import diagnosed, lanes_of
from analyzers.one_rank import replay
from analyzers.readers import chunks
from analyzers.repeats import Repeats
from autotune.diagnose.page import diagnosis_page
from autotune.diagnose.terminal import show_analysis
from tests.analyzers.drawing import DISPATCH, GEMM, GLOO_THREAD, Drawing
from tests.analyzers.microbatches import PERIOD_US, DrawnMicroBatches
from tests.analyzers.random_timelines import HORIZON_US, LOST_CORRELATION, Thing, draw, things
from tests.analyzers.taken_apart import breakdown_of

PAIR = (DrawnMicroBatches(), DrawnMicroBatches(rank=1, slower_us=70.0))
WHERE = ("start_us", "recorded_us", "path", "repeated", "microbatches", "microbatches_traced", "warnings", "coverage")


def _analyze(job: Sequence[DrawnMicroBatches], folder: Path) -> Analysis:
    for rank in job:
        rank.drawing().write(folder)
    return analyze([folder])


def _excerpts(job: Sequence[DrawnMicroBatches], held: int) -> list[DrawnMicroBatches]:
    return [replace(rank, held=held) for rank in job]


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (place, value) of every figure and word of a document, except the keys in WHERE: what a recording alone
    determines."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in WHERE:
                yield from _leaves(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{at}]")
    else:
        yield place, value


def _differ(one: Any, other: Any, *, rel: float = 1e-9) -> dict[str, tuple[Any, Any]]:
    first, second = (dict(_leaves(msgspec.to_builtins(it))) for it in (one, other))
    return {
        place: (a, b)
        for place in first.keys() | second.keys()
        if (a := first.get(place)) != (b := second.get(place)) and not _close(a, b, rel)
    }


def _close(a: Any, b: Any, rel: float) -> bool:
    return isinstance(a, int | float) and isinstance(b, int | float) and math.isclose(a, b, rel_tol=rel, abs_tol=1e-6)


@pytest.mark.parametrize("held", [3, 4, 9])
def test_a_job_has_the_same_diagnosis_from_some_of_its_micro_batches(tmp_path: Path, held: int) -> None:
    whole, some = _analyze(PAIR, tmp_path / "whole"), _analyze(_excerpts(PAIR, held), tmp_path / "some")
    assert _differ(whole, some) == {}
    assert max(rank.waiting_us for rank in whole.ranks) > 100


def test_a_window_may_count_a_fractional_number_of_times(tmp_path: Path) -> None:
    """Three micro batches represent 14: only times by kernel name, sums of whole nanoseconds, are rounded."""
    whole, some = _analyze(PAIR, tmp_path / "whole"), _analyze(_excerpts(PAIR, 5), tmp_path / "some")
    assert _differ(whole, some, rel=1e-4) == {}
    assert _differ([t.steps for t in whole.traces], [t.steps for t in some.traces]) == {}


def test_one_rank_alone_has_the_same_diagnosis(tmp_path: Path) -> None:
    whole, some = _analyze(PAIR[1:], tmp_path / "whole"), _analyze(_excerpts(PAIR[1:], 4), tmp_path / "some")
    assert _differ(whole, some) == {}


def test_a_trace_without_steps_is_scaled_as_a_whole(tmp_path: Path) -> None:
    def without_steps(rank: DrawnMicroBatches) -> Analysis:
        drawing = rank.drawing()
        drawing.events = [event for event in drawing.events if not event["name"].startswith("ProfilerStep")]
        return analyze([drawing.write(tmp_path)])

    whole, some = without_steps(PAIR[0]), without_steps(replace(PAIR[0], held=4))
    assert _differ(whole, some) == {}
    assert some.traces[0].span.duration_us == pytest.approx(whole.traces[0].span.duration_us)


def test_a_rank_on_cpus_is_scaled_likewise(tmp_path: Path) -> None:
    def trained(count: int) -> Drawing:
        drawing = Drawing(on_cpu=True)
        for k in range(count):
            t = 100.0 * k
            drawing.operator("aten::mm", t, t + 50).range("gloo:all_to_all", t + 40, t + 80, GLOO_THREAD)
        return drawing.step(0, 0, 100.0 * count)

    some = trained(4)
    some.header = {"repeated": [{"start_us": 100, "end_us": 300, "times": 7}]}
    whole = analyze([trained(16).write(tmp_path / "whole")])
    assert _differ(whole, analyze([some.write(tmp_path / "some")])) == {}


def _ahead(first: int, steady: int, last: int, *, stands_for: int) -> Drawing:
    """Draws a host that is 4.5 micro batches ahead in each of them, and waits only at the end."""
    drawing, count = Drawing().step(0, -5000, 1000 * (first + steady + last)), first + steady + last
    for t in (1000.0 * k for k in range(count)):
        drawing.kernel(GEMM, t, t + 600, launched=t - 4500)
        drawing.kernel(DISPATCH, t + 600, t + 1000, launched=t - 4490, stream=8)
    drawing.call("cudaDeviceSynchronize", 1000 * count - 5400, 1000 * count)
    window = {"start_us": 1000 * first, "end_us": 1000 * (first + steady), "times": stands_for / steady}
    drawing.header = {"repeated": [window] if stands_for != steady else []}
    return drawing


@pytest.mark.parametrize("steady", [4, 5])
def test_the_lead_of_the_host_is_used_up_in_repeated_windows_as_in_the_whole(tmp_path: Path, steady: int) -> None:
    whole, some = (breakdown_of(_ahead(6, held, 6, stands_for=36), tmp_path) for held in (36, steady))
    assert whole.replay is not None
    assert some.replay is not None
    expected = whole.replay.saved_us(whole.work.exposed_communication)
    assert 4000 < expected[0] < 4500 < whole.steps[0].exposed_communication_us / 4
    assert some.replay.saved_us(some.work.exposed_communication) == pytest.approx(expected)


@pytest.mark.parametrize("times", [1.0, 5e5])
def test_a_window_may_count_half_a_million_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    monkeypatch.setattr(replay, "MAX_POINTS", 5000)  # most of the passes are beyond it, as of 100,000
    drawing = PAIR[0].excerpt(4).drawing()
    windows = drawing.header["repeated"]
    for window in windows:
        window["times"] = times
    (trace,) = analyze([drawing.write(tmp_path)]).traces
    step = trace.steps[0]
    recorded_us = step.recorded_us or step.duration_us
    once_us = windows[0]["end_us"] - windows[0]["start_us"]
    assert step.duration_us == pytest.approx(recorded_us + (times - 1) * once_us)


LEFT, STEADY, MORE = 2, 2, 3  # random things reach into the neighbours of their micro batch, not beyond


def _repeated(drawn: list[Thing], count: int) -> Drawing:
    """Draws a step of equal micro batches of random things."""
    drawing = Drawing().step(0, 0, HORIZON_US * count)
    own = draw(([], drawn)).events
    for k in range(count):
        for event in own:
            args = dict(event["args"])
            if args.get("correlation"):
                args["correlation"] += 10 * LOST_CORRELATION * k
            drawing.events.append({**event, "ts": event["ts"] + HORIZON_US * k, "args": args})
    return drawing


microbatches = st.lists(things, min_size=1, max_size=12).filter(lambda drawn: any(one[0] == "kernel" for one in drawn))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(microbatches)
def test_windows_counted_are_windows_recorded_again_and_again(tmp_path: Path, drawn: list[Thing]) -> None:
    whole = breakdown_of(_repeated(drawn, 2 * LEFT + STEADY * MORE), tmp_path)
    drawing = _repeated(drawn, 2 * LEFT + STEADY)
    window = {"start_us": HORIZON_US * LEFT, "end_us": HORIZON_US * (LEFT + STEADY), "times": MORE}
    drawing.header = {"repeated": [window]}
    some = breakdown_of(drawing, tmp_path)
    for one, other in ((whole.steps[0], some.steps[0]), (whole.span, some.span)):
        # the usual pace is a median, which may differ with more of the same events
        assert _differ(*(msgspec.structs.replace(p, launch_rate_us=0.0) for p in (one, other))) == {}
    assert _differ(whole.work.kernels, some.work.kernels) == {}
    assert _differ(whole.ranges, some.ranges) == {}


edges = st.lists(st.integers(0, 100), min_size=2, max_size=12, unique=True).map(sorted)


@given(edges, edges, st.integers(1, 4), st.integers(0, 100), st.integers(0, 100))
def test_a_measure_is_that_of_the_set_drawn_out(
    covered: list[int], windows: list[int], times: int, start: int, end: int
) -> None:
    if len(covered) % 2:
        covered.pop()
    if len(windows) % 2:
        windows.pop()
    part = union(np.array(covered[::2], dtype=float), np.array(covered[1::2], dtype=float))
    begins, ends = np.array(windows[::2], dtype=float), np.array(windows[1::2], dtype=float)
    repeats = Repeats(start_us=begins, end_us=ends, times=np.full(len(begins), float(times)))
    since, until = sorted((float(start), float(end)))
    expected = sum(
        times if any(a <= t < b for a, b in zip(begins, ends, strict=True)) else 1
        for t in np.arange(since, until)
        if part.contains(np.array([t]))[0]
    )
    assert float(repeats.within(part, np.array(since), np.array(until))) == expected
    assert repeats.total_us(part) == float(repeats.within(part, np.array(-1.0), np.array(200.0)))


def _written(drawing: Drawing, folder: Path, order: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    path = folder / "rank0.pt.trace.json"
    path.write_text(json.dumps(order(drawing.document())))
    return path


def _header_last(document: dict[str, Any]) -> dict[str, Any]:
    return {"traceEvents": document.pop("traceEvents"), **document}


@pytest.mark.parametrize("size", [300, 1000, 1 << 18])
def test_the_keys_are_read_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
    drawing = PAIR[0].excerpt(4).drawing()
    expected = msgspec.json.encode(_steps(drawing.write(tmp_path)))
    path = _written(drawing, tmp_path, _header_last)
    assert msgspec.json.encode(_steps(path)) == expected
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert msgspec.json.encode(_steps(packed)) == expected


def _steps(path: Path) -> tuple[list[Partition], Partition, Any]:
    trace = _trace(path)
    return trace.steps, trace.span, (trace.microbatches, trace.microbatches_traced, trace.repeated)


def _trace(path: Path) -> TraceReport:
    (trace,) = analyze([path]).traces
    return trace


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"repeated": {"start_us": 0}}, "repeated is ignored: Expected `array`"),
        ({"repeated": "twice"}, "repeated is ignored: Expected `array`"),
        ({"repeated": [{"start_us": 0, "end_us": 5}]}, "missing required field `times`"),
        (
            {"repeated": [{"start_us": "0", "end_us": 5, "times": 2}]},
            "Expected `float`, got `str` - at `$[0].start_us`",
        ),
        ({"repeated": [{"start_us": 0, "end_us": 5, "times": True}]}, "got `bool`"),
        ({"repeated": [{"start_us": 0, "end_us": 5, "times": 0.5}]}, "Expected `float` >= 1.0 - at `$[0].times`"),
        ({"repeated": [{"start_us": 0, "end_us": 5, "times": float("nan")}]}, "got `null`"),
        ({"repeated": [{"start_us": 0, "end_us": 5, "times": 1e300}]}, "Expected `float` <= 1000000.0"),
        ({"repeated": [{"start_us": -1e300, "end_us": 5, "times": 2}]}, "repeated is ignored: Expected `float` > "),
        ({"repeated": [{"start_us": 5, "end_us": 4, "times": 2}]}, "from 5.0 to 4.0 us does not end after its start"),
        (
            {"repeated": [{"start_us": 9, "end_us": 20, "times": 2}, {"start_us": 0, "end_us": 10, "times": 2}]},
            "the windows from 0.0 and from 9.0 us overlap",
        ),
        ({"microbatches": "many"}, "microbatches is ignored: Expected `int`, got `str`"),
        ({"microbatches": 0}, "microbatches is ignored: Expected `int` >= 1"),
        ({"microbatches_traced": [1]}, "microbatches_traced is ignored: Expected `int`"),
        ({"microbatches": 4, "microbatches_traced": 5}, "are ignored: 5 of 4 were traced"),
    ],
)
def test_what_is_malformed_is_ignored_and_said(tmp_path: Path, header: dict[str, Any], said: str) -> None:
    drawing = replace(PAIR[0], microbatches=3).drawing()
    expected = _trace(drawing.write(tmp_path))
    drawing.header = header
    found = _trace(drawing.write(tmp_path))
    assert [warning for warning in found.warnings if said in warning], found.warnings
    assert (found.steps, found.span, found.kernels) == (expected.steps, expected.span, expected.kernels)
    assert (found.microbatches, found.microbatches_traced, found.repeated) in ((None, None, []), (4, None, []))


def test_null_is_as_good_as_nothing(tmp_path: Path) -> None:
    drawing = replace(PAIR[0], microbatches=3).drawing()
    expected = _trace(drawing.write(tmp_path))
    drawing.header = {"microbatches": None, "microbatches_traced": None, "repeated": None}
    assert _trace(drawing.write(tmp_path)) == expected


def test_a_window_where_nothing_was_recorded_changes_nothing(tmp_path: Path) -> None:
    drawing = replace(PAIR[0], microbatches=3).drawing()
    expected = _trace(drawing.write(tmp_path))
    drawing.header = {"repeated": [{"start_us": 1e9, "end_us": 2e9, "times": 3}]}
    assert _trace(drawing.write(tmp_path)).steps == expected.steps


def test_the_diagnosis_says_how_many_were_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analysis = _analyze(_excerpts(PAIR, 5), tmp_path)
    said = "5 of 16 micro batches were recorded; repeated windows count 4.667 times"
    show_analysis(analysis)
    assert said in " ".join(capsys.readouterr().out.split())
    page = diagnosis_page(analysis, "drawn")
    assert said in page
    assert re.search(r"ms recorded, counted as [\d.]+ ms: ", page)
    first = analysis.traces[0]
    assert (first.microbatches, first.microbatches_traced, said in first.warnings) == (16, 5, True)
    assert [window.times for window in first.repeated] == pytest.approx([14 / 3, 14 / 3])


def test_micro_batches_of_which_none_repeats_are_said_to_be_some(tmp_path: Path) -> None:
    drawing = replace(PAIR[0], microbatches=3).drawing()
    drawing.header = {"microbatches": 16, "microbatches_traced": 3}
    said = "3 of 16 micro batches were recorded, without the windows that repeat: no figure is scaled"
    assert said in _trace(drawing.write(tmp_path)).warnings


def test_steps_stand_and_are_drawn_where_they_were_recorded(tmp_path: Path) -> None:
    trace = _trace(replace(PAIR[0], held=4).drawing().write(tmp_path))
    step = trace.steps[0]
    assert step.recorded_us == pytest.approx(300 + 4 * PERIOD_US + 720)
    assert step.duration_us == pytest.approx(300 + 16 * PERIOD_US + 720)
    assert step.end_us - step.start_us == pytest.approx(step.recorded_us)
    drawn = lanes_of(diagnosed(trace), start_us=step.start_us, end_us=step.end_us)
    assert drawn.duration_us == pytest.approx(step.recorded_us)
