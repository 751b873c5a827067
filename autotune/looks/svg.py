"""Makes SVG elements: horizontal positions in per cent, vertical ones in pixels.

A figure without a viewBox is as wide as its column and keeps its font size, on a phone and on paper. Axis labels are in
the padding left of the drawing (negative x). All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

MAX_DECIMALS = 10  # decimals of a figure on an axis
# Marks are distinguished by shape, not only by colour: path data around the origin, about 10 pixels across.
MARKS = {
    "accepted": "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0Z",
    "rejected": "M0,-6L6,0L0,6L-6,0Z",
    "inconclusive": "M-5,-5H5V5H-5Z",
    "noop": "M-6,-2H6V2H-6Z",
    "oom": "M-6,-5H6L0,6Z",
    "failed": "M-5,-5L5,5M5,-5L-5,5",
}


def tag(name: str, *children: str | Markup, title: str | None = None, **attributes: object) -> Markup:
    """Returns one element. `class_` and `stroke_width` become `class` and `stroke-width`; None omits an attribute."""
    written = Markup("").join(
        Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-")), value)
        for key, value in attributes.items()
        if value is not None
    )
    inside = [Markup("<title>{}</title>").format(title)] if title else []
    inside += [escape(child) for child in children]
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, Markup("").join(inside))


def place(fraction: float) -> str:
    """Returns a horizontal position as per cent, from 0..1 of the width."""
    return f"{100 * fraction:.3f}%"


def mark(shape: str, x: float, y: float, *, title: str | None = None) -> Markup:
    """Draws a mark of `MARKS` at a fraction of the width and a pixel height."""
    drawn = tag("path", d=MARKS[shape], class_=f"mark {shape}")
    return tag("svg", drawn, x=place(x), y=f"{y:.1f}", class_="at", overflow="visible", title=title)


def shapes(rows: Sequence[tuple[str, str]]) -> Markup:
    """Returns a legend of marks: (shape of `MARKS`, its words)."""
    items = [
        tag("li", tag("svg", mark(shape, 0.5, 8), width="16", height="16", aria_hidden="true"), words)
        for shape, words in rows
    ]
    return tag("ul", *items, class_="legend")


def line(x1: float, y1: float, x2: float, y2: float, class_: str, *, title: str | None = None) -> Markup:
    places = {"x1": place(x1), "y1": f"{y1:.1f}", "x2": place(x2), "y2": f"{y2:.1f}"}
    return tag("line", class_=class_, title=title, **places)


def box(x1: float, y1: float, x2: float, y2: float, class_: str, *, title: str | None = None) -> Markup:
    """Draws a rectangle between two opposite corners, in any order."""
    return tag(
        "rect",
        x=place(min(x1, x2)),
        y=f"{min(y1, y2):.1f}",
        width=place(abs(x2 - x1)),
        height=f"{abs(y2 - y1):.1f}",
        class_=class_,
        title=title,
    )


def drawing(parts: Sequence[Markup], *, height: int, name: str, class_: str) -> Markup:
    """Returns the whole figure; `name` is one sentence that describes it to screen readers."""
    return tag("svg", *parts, width="100%", height=str(height), class_=class_, role="img", aria_label=name)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A vertical axis from `low` at the bottom (pixel `bottom`) to `high` at the top (pixel `top`)."""

    low: float
    high: float
    top: float
    bottom: float

    def y(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.bottom - (value - self.low) / span * (self.bottom - self.top)

    def grid(self) -> list[Markup]:
        """Draws lines with their figures at about five round values."""
        step = round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        values = [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [part for value in values for part in self._tick(value, step)]

    def _tick(self, value: float, step: float) -> list[Markup]:
        exact = (places for places in range(MAX_DECIMALS) if abs(round(step, places) - step) < 1e-9 * step)
        decimals = next(exact, MAX_DECIMALS)
        y = self.y(value)
        label = tag("text", f"{value:,.{decimals}f}", x="-8", y=f"{y + 4:.1f}", class_="axis end")
        return [line(0, y, 1, y, "grid"), label]


def round_step(rough: float) -> float:
    """Returns the smallest of 1, 2, 2.5, 5 times a power of ten that is not below `rough`."""
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))


def numbers_below(count: int, height: float, *, first: Sequence[str]) -> list[Markup]:
    """Draws the labels of `count` columns below a figure; labels that would overlap are left out."""
    every = max(1, math.ceil(count / 20))
    return [
        tag("text", first[i], x=place((i + 0.5) / count), y=f"{height:.1f}", class_="axis middle")
        for i in range(0, count, every)
    ]
