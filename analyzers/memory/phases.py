"""Names what a rank was executing at a moment, to attribute the memory that is alive at the peak."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzers.intervals import Bools, Floats
from analyzers.nesting import NONE, innermost, outermost
from analyzers.steps import Step, is_step
from analyzers.timeline import Ints, Spans, Timeline

BACKWARD = "backward"
OUTSIDE = "outside annotations and operators"
AUTOGRAD = "autograd::engine::evaluate_function"
NAME_LENGTH = 60


def phases(timeline: Timeline, windows: Sequence[Step], lane: Ints, time_us: Floats) -> list[str]:
    """Returns, for each moment on a thread (int64[Q], float64[Q]), the innermost open annotation, marked if autograd
    runs; without one BACKWARD if autograd runs, else the outermost open operator, else OUTSIDE. Autograd's threads have
    no annotations of their own: for them, those of the thread that marks the steps are used."""
    found = innermost_annotation(timeline.ranges, lane, time_us)
    main = _main_lane(timeline.ranges, windows)
    backward = _in_autograd(timeline.ops, lane, time_us)
    if main is not None:
        elsewhere = np.flatnonzero((found == NONE) & (lane != main))
        found[elsewhere] = innermost_annotation(timeline.ranges, np.full(len(elsewhere), main), time_us[elsewhere])
    nameless = np.flatnonzero((found == NONE) & ~backward)
    operator = np.full(len(lane), NONE, dtype=np.int64)
    operator[nameless] = _outermost_open(timeline.ops, lane[nameless], time_us[nameless])
    return [
        _name(timeline.ranges.names, annotation, running, back)
        for annotation, running, back in zip(found.tolist(), operator.tolist(), backward.tolist(), strict=True)
    ]


def innermost_annotation(ranges: Spans, lane: Ints, time_us: Floats) -> Ints:
    """Returns int64[Q]: the innermost open range that is not a step, for each moment on a thread; NONE if there is
    none."""
    step = ranges.where(is_step)
    return innermost(ranges, np.where(step, NONE, ranges.name), lane, time_us)


def short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"


def _name(names: Sequence[str], annotation: int, operator: int, backward: bool) -> str:
    if annotation == NONE:
        return BACKWARD if backward else OUTSIDE if operator == NONE else short(names[operator])
    shown = short(names[annotation])
    return f"{shown} ({BACKWARD})" if backward and BACKWARD not in shown.lower() else shown


def _main_lane(ranges: Spans, windows: Sequence[Step]) -> int | None:
    """Returns the thread on which the steps are marked; None if no step is."""
    if not windows:
        return None
    marked = ranges.lane[ranges.where(is_step)]
    return int(marked[0]) if len(marked) else None


def _in_autograd(ops: Spans, lane: Ints, time_us: Floats) -> Bools:
    running = ops.where(lambda name: name.startswith(AUTOGRAD))
    inside = np.zeros(len(lane), dtype=bool)
    for one in np.unique(lane).tolist():
        here = ops.covered(running & (ops.lane == one))
        inside |= (lane == one) & here.contains(time_us)
    return inside


def _outermost_open(ops: Spans, lane: Ints, time_us: Floats) -> Ints:
    """Returns int64[Q]: the name of the outermost open operator, for each moment on a thread; NONE if there is none."""
    found = np.full(len(lane), NONE, dtype=np.int64)
    for one in np.unique(lane).tolist():
        rows = np.flatnonzero(lane == one)
        rows = rows[np.argsort(time_us[rows], kind="stable")]
        moments = time_us[rows]
        some = (ops.lane == one) & (
            np.searchsorted(moments, ops.end_us, side="left") > np.searchsorted(moments, ops.start_us, side="left")
        )
        here = outermost(ops.take(some))
        at = np.searchsorted(here.start_us, moments, side="right") - 1
        at_or_first = np.maximum(at, 0)
        if len(here):
            inside = (at >= 0) & (moments < here.end_us[at_or_first])
            found[rows] = np.where(inside, here.name[at_or_first], NONE)
    return found
