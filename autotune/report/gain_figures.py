"""Draws gains: predicted intervals with the obtained gains, one row per trial, and the waterfall of accepted
changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from autotune.looks.fix_names import title_of, titles_text
from autotune.looks.quantities import gain, tokens_per_s
from autotune.looks.stacks import Piece, Stack, bar, legend
from autotune.looks.svg import box, drawing, line, mark, place, tag
from autotune.report.gains import Forecast, Stage, forecasts, stages
from autotune.report.marks import marks_legend, shape_of
from autotune.report.material import Material
from autotune.report.path import predicted_text

ROW_PX, TICKS_PX = 22, 22
LINEAR_UP_TO = 0.03  # the axis is about linear up to this gain, and logarithmic beyond it
TICKS = (-0.9, -0.75, -0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 9.0, 19.0)
AXIS_BOUNDS = (-0.95, 20.0)  # bounds of the axis; longer intervals end there
LABEL_WIDTH = 0.115  # width of a tick's label, as a share of a drawing on a page of 600 px
AXIS_INCLUDES = (-0.05, 0.12)  # the axis always includes these gains
REFERENCE, WHOLE = "w-reference", "w-several"  # colours of the first bar, and of a gain that is not divided


def predicted_against_obtained(material: Material) -> Markup:
    """Draws a row for each trial: the predicted interval as a bar, the obtained gain as a mark with its interval."""
    found = forecasts(material)
    if not found:
        return Markup("")
    low, high = _range(found)
    height = ROW_PX * len(found)
    shown = [tick for tick in TICKS if low <= tick <= high]
    labelled = _labelled(shown, low, high)
    parts = [part for tick in shown for part in _tick(tick, low, high, height, labelled=tick in labelled)]
    for row, forecast in enumerate(found):
        parts += _forecast(forecast, low, high, ROW_PX * (row + 0.5))
    name = f"Predicted and obtained gain of {len(found)} trials; the table below has the figures"
    unit = tag("p", "trial: gain of throughput over its parent", class_="unit")
    return (
        unit
        + drawing(parts, height=height + TICKS_PX, name=name, class_="chart")
        + marks_legend(each.trial for each in found)
    )


def _range(found: Sequence[Forecast]) -> tuple[float, float]:
    """Returns the gains at both edges of the drawing, which include all predictions and results within AXIS_BOUNDS."""
    known = [value for forecast in found for value in forecast.predicted or ()]
    known += [forecast.obtained.value - 1 for forecast in found if forecast.obtained]
    low, high = min([*known, AXIS_INCLUDES[0]]), max([*known, AXIS_INCLUDES[1]])
    return max(1.1 * low, AXIS_BOUNDS[0]), min(1.1 * high, AXIS_BOUNDS[1])


def _x(value: float, low: float, high: float) -> float:
    """Returns the position of a gain on the axis, 0 to 1: linear near zero, logarithmic further out."""
    start, end, at = (math.asinh(number / LINEAR_UP_TO) for number in (low, high, min(max(value, low), high)))
    return (at - start) / (end - start)


def _labelled(ticks: Sequence[float], low: float, high: float) -> list[float]:
    """Returns the ticks whose labels do not overlap on a narrow page, those near zero first."""
    kept: list[float] = []
    for tick in sorted(ticks, key=abs):
        if all(abs(_x(tick, low, high) - _x(other, low, high)) >= LABEL_WIDTH for other in kept):
            kept.append(tick)
    return kept


def _tick(value: float, low: float, high: float, height: float, *, labelled: bool) -> list[Markup]:
    x = _x(value, low, high)
    ruled = line(x, 0, x, height, "grid" if value else "zero")
    if not labelled:
        return [ruled]
    label = tag("text", gain(value, 0) if value else "0", x=place(x), y=f"{height + 16:.1f}", class_="axis middle")
    return [ruled, label]


def _forecast(forecast: Forecast, low: float, high: float, y: float) -> list[Markup]:
    trial, known = forecast.trial, forecast.predicted
    title = f"trial {trial.number}, {titles_text(trial)}: predicted {predicted_text(trial)}"
    parts = [tag("text", str(trial.number), x="-8", y=f"{y + 4:.1f}", class_="axis end")]
    expected = trial.proposal.predicted.gain
    if known is not None:
        ends = [_x(end, low, high) for end in known[1:]]
        parts.append(box(ends[0], y - 6, ends[1], y + 6, "predicted", title=title))
    if expected is not None:
        at = _x(expected, low, high)
        parts.append(line(at, y - 6, at, y + 6, "best", title=title))
    got = forecast.obtained
    if got is None:
        return [*parts, mark(shape_of(trial), 0.0, y, title=f"trial {trial.number}: no gain, it or its parent failed")]
    said = f"trial {trial.number}: obtained {gain(got.value - 1)} ({gain(got.low - 1)} to {gain(got.high - 1)})"
    ends = [_x(end - 1, low, high) for end in (got.low, got.high)]
    whisker = line(ends[0], y, ends[1], y, "whisker")
    return [*parts, whisker, mark(shape_of(trial), _x(got.value - 1, low, high), y, title=said)]


def gains_waterfall(material: Material) -> Markup:
    """Draws the reference's throughput as a bar, and below it what each accepted change added."""
    found, reference = stages(material), material.history.reference
    if not found or reference is None:
        return Markup("")
    start = material.figures[reference.number].tokens_per_s_per_gpu
    longest = max([start, *(max(stage.before, stage.after) for stage in found)])
    said = tokens_per_s(start, unit=material.unit)
    first = Stack(
        label=f"reference, trial {reference.number} · {said}",
        pieces=(Piece(key=REFERENCE, words="reference", value=start, text=said),),
    )
    stacks = [first, *(_stack(stage, material.unit) for stage in found)]
    bars = [bar(stack, longest=longest, shares=index > 0) for index, stack in enumerate(stacks)]
    pieces = {piece.key: piece for stack in stacks for piece in stack.pieces}
    words = [Piece(key=key, words=_legend_words(key), value=1.0, text="") for key in pieces]
    return Markup("").join([legend(words), *bars])


def _stack(stage: Stage, unit: str) -> Stack:
    moved = stage.after - stage.before
    parts = stage.parts or ((None, 1.0),)
    pieces = tuple(
        Piece(
            key=WHOLE if part is None or part.wall is None else f"w-{part.wall.value}",
            words=titles_text(stage.trial) if part is None else title_of(part, stage.trial.changes),
            value=share * abs(moved),
            text=tokens_per_s(share * moved, unit=unit),
        )
        for part, share in parts
    )
    figures = f"{tokens_per_s(stage.after, unit=unit)} ({gain(stage.after / stage.before - 1)})"
    label = f"trial {stage.trial.number} · {titles_text(stage.trial)} · {figures}"
    return Stack(label=label, pieces=pieces, start=min(stage.before, stage.after))


def _legend_words(key: str) -> str:
    named = {REFERENCE: "reference", WHOLE: "no wall, or not divided"}
    return named.get(key, f"answers {key.removeprefix('w-')}")
