"""Checks properties of every timeline on random ones: conservation, order, pieces, clocks, windows, devices."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from analyzers import analyze
from analyzers.diagnosis import Partition
from analyzers.one_rank import gaps, host
from analyzers.one_rank.breakdown import Breakdown, break_down
from analyzers.readers import chunks, read
from tests.analyzers.by_the_microsecond import Reference, reference
from tests.analyzers.drawing import GEMM
from tests.analyzers.random_timelines import HORIZON_US, OTHER_DEVICE, TimelineThings, draw, kernels, timelines
from tests.analyzers.taken_apart import breakdown_of

PLACE = ("name", "start_us")
PARTS = ("compute", "exposed_communication", "exposed_copy", "idle", "turnaround")
CAUSES = ("host", "sync", "bubble", "unattributed")


def tried(times: int) -> settings:
    """Returns the settings for `times` random timelines; all may be written to the same folder."""
    return settings(max_examples=times, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _figures(partition: Partition) -> dict[str, float]:
    """Returns every time of a partition by name, without its start."""
    found: dict[str, float] = {}

    def add(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}", inner)
        elif isinstance(value, int | float):
            found[prefix] = float(value)

    add("", {k: v for k, v in msgspec.to_builtins(partition).items() if k not in PLACE})
    return {name: us for name, us in found.items() if us}


def _same(one: Partition, other: dict[str, float]) -> bool:
    figures = _figures(one)
    return all(
        math.isclose(figures.get(k, 0.0), other.get(k, 0.0), abs_tol=1e-6) for k in figures.keys() | other.keys()
    )


@tried(50)
@given(timelines)
def test_the_parts_of_any_step_and_of_the_whole_span_add_up(tmp_path: Path, timeline: TimelineThings) -> None:
    breakdown = breakdown_of(draw(timeline), tmp_path)
    for p in (breakdown.span, *breakdown.steps):
        causes = msgspec.to_builtins(p.idle_by_cause)
        sums = {
            "duration": (p.duration_us, p.compute_us + p.exposed_communication_us + p.exposed_copy_us + p.idle_us),
            "busy": (p.busy_us, p.duration_us - p.idle_us),
            "idle": (p.idle_us, sum(causes.values())),
            "classes": (p.compute_us, sum(p.compute_by_class.values())),
            "kinds": (p.exposed_communication_us, sum(k.exposed_us for k in p.communication_by_kind.values())),
            "activities": (p.idle_by_cause.host_us, sum(p.host_by_activity.values())),
        }
        for what, (whole, parts) in sums.items():
            assert parts == pytest.approx(whole, abs=1e-6), what
        assert min(*causes.values(), *_figures(p).values(), 0.0) >= 0.0
        assert p.launch_rate_us <= p.idle_by_cause.host_us + 1e-6


@tried(60)
@given(timelines)
def test_sorted_sweeps_say_what_a_boolean_a_microsecond_says(tmp_path: Path, timeline: TimelineThings) -> None:
    drawing = draw(timeline)
    breakdown = breakdown_of(drawing, tmp_path)
    expected = reference(drawing)
    for partition in (breakdown.span, *breakdown.steps):
        assert _said(partition) == _expected(expected, partition)


def _said(p: Partition) -> dict[str, float]:
    causes = {cause: getattr(p.idle_by_cause, f"{cause}_us") for cause in CAUSES}
    parts = {part: getattr(p, f"{part}_us") for part in PARTS}
    return {k: us for k, us in {**parts, **causes, **p.host_by_activity}.items() if us}


def _expected(expected: Reference, p: Partition) -> dict[str, float]:
    host_ = expected.parts["host"]
    lit = {**expected.parts, **{name: host_ & on for name, on in expected.activities.items()}}
    return {k: us for k, on in lit.items() if (us := expected.us(on, p.start_us, p.duration_us))}


@tried(20)
@given(timelines, st.randoms(use_true_random=False))
def test_the_order_of_events_changes_nothing(tmp_path: Path, timeline: TimelineThings, chance: random.Random) -> None:
    drawing = draw(timeline)
    ordered = msgspec.json.encode(analyze([drawing.write(tmp_path)]))
    chance.shuffle(drawing.events)
    assert msgspec.json.encode(analyze([drawing.write(tmp_path)])) == ordered


@contextmanager
def _set(module: Any, **values: float) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@tried(20)
@given(timelines, st.integers(300, 3000))
def test_a_file_read_in_pieces_is_the_file_read_at_once(tmp_path: Path, timeline: TimelineThings, size: int) -> None:
    path = draw(timeline).write(tmp_path)
    whole = msgspec.json.encode(analyze([path]))
    with _set(chunks, CHUNK_BYTES=size):
        assert msgspec.json.encode(analyze([path])) == whole


@tried(20)
@given(timelines, st.sampled_from((1, 1_000_003, 1_700_000_000_000_000)))
def test_a_clock_that_starts_elsewhere_changes_nothing(tmp_path: Path, timeline: TimelineThings, shift: int) -> None:
    here, there = (breakdown_of(draw(timeline, shift=by), tmp_path) for by in (0, shift))
    assert (there.span, there.steps) == (here.span, here.steps)


@tried(20)
@given(timelines, st.sampled_from((2, 7)))
def test_times_in_another_unit_scale_every_figure(tmp_path: Path, timeline: TimelineThings, scale: int) -> None:
    one = breakdown_of(draw(timeline), tmp_path)
    slower = {name: getattr(gaps, name) * scale for name in ("LAUNCH_LATENCY_US", "TURNAROUND_US")}
    with _set(gaps, **slower), _set(host, SLOW_LAUNCH_US=host.SLOW_LAUNCH_US * scale):
        scaled = breakdown_of(draw(timeline, scale=scale), tmp_path)
    for small, large in zip((one.span, *one.steps), (scaled.span, *scaled.steps), strict=True):
        assert _same(large, {name: us * scale for name, us in _figures(small).items()})


@tried(25)
@given(timelines, st.integers(0, HORIZON_US))
def test_two_halves_of_a_step_add_up_to_the_step(tmp_path: Path, timeline: TimelineThings, cut: int) -> None:
    edges, things = timeline
    whole = breakdown_of(draw((edges, things)), tmp_path)
    between = edges[0] + cut % (edges[-1] - edges[0])
    halves = breakdown_of(draw((sorted({*edges, between}), things)), tmp_path)
    assert _sum(halves) == pytest.approx(_sum(whole), abs=1e-6)


def _sum(breakdown: Breakdown) -> dict[str, float]:
    total: Counter[str] = Counter()
    for step in breakdown.steps:
        total.update(_figures(step))
    return dict(total)


@tried(25)
@given(timelines, st.data())
def test_a_copy_under_compute_is_a_copy_and_nothing_else(
    tmp_path: Path, timeline: TimelineThings, data: st.DataObject
) -> None:
    drawing = draw(timeline)
    alone = breakdown_of(drawing, tmp_path)
    compute = alone.work.compute
    assume(len(compute) > 0)
    k = data.draw(st.integers(0, len(compute) - 1))
    origin = min(event["ts"] for event in drawing.events)
    drawing.copy("Memcpy DtoD", float(compute.start[k]) + origin, float(compute.end[k]) + origin, stream=11)
    together = breakdown_of(drawing, tmp_path)
    for before, after in zip((alone.span, *alone.steps), (together.span, *together.steps), strict=True):
        assert after.copy_us >= before.copy_us
        assert msgspec.structs.replace(after, copy_us=before.copy_us) == before


@tried(20)
@given(timelines, st.lists(kernels, min_size=1, max_size=8))
def test_what_another_device_does_changes_nothing_on_this_one(
    tmp_path: Path, timeline: TimelineThings, others: list[tuple[Any, ...]]
) -> None:
    drawing = draw(timeline)
    alone = breakdown_of(drawing, tmp_path)
    latest = max(event["ts"] + event["dur"] for event in drawing.events)
    first = min(event["ts"] for event in drawing.events)
    for _, _, start, length, before, took, _, stream in others:
        begin = max(first, start - (before or 0))
        end = min(start + length, latest)
        if begin < end:
            launched = None if before is None else begin
            drawing.kernel(
                GEMM, begin, end, launched=launched, launch_took=took, thread=OTHER_DEVICE, stream=stream, device=1
            )
    mine = next(timeline for timeline in read(drawing.write(tmp_path)) if timeline.device_index == 0)
    together = break_down(mine)
    assert (together.span, together.steps) == (alone.span, alone.steps)
