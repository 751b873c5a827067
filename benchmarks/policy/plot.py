"""Draws regret against bursts and against cluster hours, as one self-contained SVG.

Regret is 1 − tuned/best: the thick line is the median over scenarios, the thin one the 90th percentile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from markupsafe import Markup

from autotune.looks.svg import Axis, line, place, tag
from benchmarks.policy.figures import LOW
from benchmarks.policy.study import Study

WIDTH, HEIGHT, TOP, BOTTOM = 1000, 420, 50, 360
PANEL, GAP, LEFT, APART = 380, 60, 50, 15
COLORS = ("#c0392b", "#1f6fb2", "#2a8f4f", "#8e5ba6", "#7a7a7a", "#d08c1d")
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 } .title { font-weight: 600; font-size: 13px }
.end { text-anchor: end } .middle { text-anchor: middle } .grid { stroke: #ddd } .base { stroke: #888 }
.median { stroke-width: 2.2 } .low { stroke-width: 1; stroke-dasharray: 3 3 }
"""
HOURS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # ticks, hours of the whole cluster: GPU-hours per GPU
POINTS = 60
Curve = list[tuple[float, float, float]]  # (place 0..1, median, worse tenth)


def draw(file: Path, studies: Sequence[Study], best: Mapping[str, float], budget: int) -> None:
    """Writes the picture; each panel has one curve per contender."""
    by_name: dict[str, list[Study]] = {}
    for study in studies:
        by_name.setdefault(study.contender, []).append(study)
    colors = dict(zip(by_name, COLORS, strict=False))
    bursts = {name: _over_bursts(found, best, budget) for name, found in by_name.items()}
    hours = {name: _over_hours(found, best) for name, found in by_name.items()}
    spread = len({study.scenario for study in studies})
    ticks = [(count / budget, str(count)) for count in range(0, budget + 1, max(1, budget // 4))]
    places = [(_hour_place(value), f"{value:g}") for value in HOURS]
    parts = [
        tag("style", Markup(STYLE)),
        tag("rect", width="100%", height="100%", fill="white"),
        tag("text", f"Regret (1 − tuned/best known) over {spread} scenarios", x=str(LEFT), y="20", class_="title"),
        tag("text", "solid: median, dashed: a tenth of the scenarios are worse", x=str(LEFT), y="37"),
        _panel(LEFT, bursts, colors, ticks, "bursts after the base's"),
        _panel(LEFT + PANEL + GAP, hours, colors, places, "GPU-hours for each GPU of the cluster"),
        *_names(LEFT + 2 * PANEL + GAP + 8, hours, colors),
    ]
    picture = tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", width=str(WIDTH), height=str(HEIGHT))
    file.write_text(str(picture) + "\n", encoding="utf-8")


def _over_bursts(studies: Sequence[Study], best: Mapping[str, float], budget: int) -> Curve:
    tuned = [[study.tuned_after(bursts) for study in studies] for bursts in range(budget + 1)]
    return [(bursts / budget, *_regret(studies, best, found)) for bursts, found in enumerate(tuned)]


def _over_hours(studies: Sequence[Study], best: Mapping[str, float]) -> Curve:
    curve = []
    for point in range(POINTS + 1):
        spent = HOURS[0] * (HOURS[-1] / HOURS[0]) ** (point / POINTS)
        tuned = [study.tuned_at(spent * study.world) for study in studies]
        curve.append((point / POINTS, *_regret(studies, best, tuned)))
    return curve


def _hour_place(hours: float) -> float:
    return math.log(hours / HOURS[0]) / math.log(HOURS[-1] / HOURS[0])


def _regret(studies: Sequence[Study], best: Mapping[str, float], tuned: Sequence[float]) -> tuple[float, float]:
    """Returns (median, 90th percentile) of regret."""
    found = [1 - rate / best[study.scenario] for rate, study in zip(tuned, studies, strict=True)]
    return float(np.median(found)), float(np.quantile(found, 1 - LOW))


def _panel(
    left: int, curves: Mapping[str, Curve], colors: Mapping[str, str], ticks: Sequence[tuple[float, str]], below: str
) -> Markup:
    axis = _axis()
    labels = [tag("text", text, x=place(at), y=str(BOTTOM + 18), class_="middle") for at, text in ticks]
    lines = [part for name, curve in curves.items() for part in _drawn(curve, axis, colors[name])]
    under = tag("text", below, x="50%", y=str(BOTTOM + 42), class_="middle")
    base = line(0, BOTTOM, 1, BOTTOM, "base")
    return tag("svg", *axis.grid(), base, *lines, *labels, under, x=str(left), width=str(PANEL), overflow="visible")


def _axis() -> Axis:
    return Axis(low=0.0, high=1.0, top=TOP, bottom=BOTTOM)


def _drawn(curve: Curve, axis: Axis, color: str) -> list[Markup]:
    """Returns the curve as steps: each value holds until the next point."""
    steps = []
    for (at, *here), (then, *there) in pairwise(curve):
        for before, after, class_ in zip(here, there, ("median", "low"), strict=True):
            steps += [line(at, axis.y(before), then, axis.y(before), class_)]
            steps += [line(then, axis.y(before), then, axis.y(after), class_)] if before != after else []
    return [tag("g", *steps, stroke=color)]


def _names(left: int, curves: Mapping[str, Curve], colors: Mapping[str, str]) -> list[Markup]:
    """Returns labels at the end of each median curve, moved apart if they would overlap."""
    ends = sorted((_axis().y(curve[-1][1]), name) for name, curve in curves.items())
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + APART) if places else y)
    over = max(0.0, places[-1] - (BOTTOM - APART / 2)) if places else 0.0
    return [
        tag("text", name, x=str(left), y=f"{y - over + 4:.1f}", style=f"fill:{colors[name]}")
        for y, (_, name) in zip(places, ends, strict=True)
    ]
