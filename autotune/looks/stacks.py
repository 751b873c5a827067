"""Draws stacked figures: horizontal bars on one scale, and columns below a limit.

Every piece has its numbers as a tooltip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from autotune.looks.quantities import percent
from autotune.looks.svg import Axis, box, drawing, line, numbers_below, place, tag

BAR_PX = 24
COLUMNS_PX = 280
LABEL_FROM = 0.09  # smallest share of a bar that is labelled inside; below WIDE_FROM only on wide pages
WIDE_FROM = 0.16


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One part of a stack. `key`: its colour (`k-…` of the style sheet); `text`: the value in human units."""

    key: str
    words: str
    value: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A bar of pieces from `start` on the scale."""

    label: str
    pieces: tuple[Piece, ...]
    start: float = 0.0

    @property
    def total(self) -> float:
        return sum(piece.value for piece in self.pieces)


def bar(stack: Stack, *, longest: float, mark: float | None = None, shares: bool = True) -> Markup:
    """Draws a label and the stacked bar below it.

    `longest` fills the width, `mark` is a limit; with `shares`, pieces that are wide enough show their share.
    """
    total = stack.total or 1.0
    drawn: list[Markup] = []
    x = stack.start / longest
    for piece in stack.pieces:
        width = piece.value / longest
        share = percent(piece.value / total)
        title = f"{piece.words}: {piece.text}, {share}"
        drawn.append(box(x, 0, x + width, BAR_PX, f"k-{piece.key}", title=title))
        if shares and width >= LABEL_FROM:
            class_ = f"in t-{piece.key}" + ("" if width >= WIDE_FROM else " wide")
            middle = {"x": place(x + width / 2), "y": str(BAR_PX // 2 + 4)}
            drawn.append(tag("text", percent(piece.value / total, 0), class_=class_, **middle))
        x += width
    if mark is not None:
        drawn.append(line(mark / longest, -3, mark / longest, BAR_PX + 3, "limit"))
    said = ", ".join(f"{piece.words} {percent(piece.value / total)}" for piece in stack.pieces)
    figure = drawing(drawn, height=BAR_PX, name=f"{stack.label}: {said}", class_="bar")
    return tag("p", stack.label, class_="bar-label") + figure


def columns(stacks: Sequence[Stack], *, tops: Sequence[float], limit: float | None, unit: str, name: str) -> Markup:
    """Draws one column per stack, a whisker up to its `tops`, and the limit; `name` is the accessible description."""
    highest = max([*tops, *(stack.total for stack in stacks), limit or 0.0], default=1.0)
    axis = Axis(low=0.0, high=1.08 * highest, top=14, bottom=COLUMNS_PX - 24)
    parts = axis.grid()
    for index, (stack, top) in enumerate(zip(stacks, tops, strict=True)):
        centre, half = (index + 0.5) / len(stacks), min(0.35 / len(stacks), 0.06)
        y = 0.0
        for piece in stack.pieces:
            title = f"{stack.label} · {piece.words}: {piece.text}"
            corners = (centre - half, axis.y(y), centre + half, axis.y(y + piece.value))
            parts.append(box(*corners, f"k-{piece.key}", title=title))
            y += piece.value
        if top > y:
            parts.append(line(centre, axis.y(y), centre, axis.y(top), "whisker"))
            parts.append(line(centre - half / 2, axis.y(top), centre + half / 2, axis.y(top), "whisker"))
    if limit is not None:
        parts.append(line(0, axis.y(limit), 1, axis.y(limit), "limit"))
        parts.append(tag("text", f"limit {limit:g}", x="100%", y=f"{axis.y(limit) - 5:.1f}", class_="axis end over"))
    parts += numbers_below(len(stacks), COLUMNS_PX - 6, first=[stack.label for stack in stacks])
    return tag("p", unit, class_="unit") + drawing(parts, height=COLUMNS_PX, name=name, class_="chart")


def legend(pieces: Iterable[Piece]) -> Markup:
    """Draws a swatch for each colour that occurs, in the order given."""
    every = list(pieces)
    seen = {piece.key for piece in every if piece.value > 0}
    words = {piece.key: piece.words for piece in every if piece.key in seen}
    items = [
        tag("li", tag("svg", box(0, 0, 1, 12, f"k-{key}"), width="12", height="12", aria_hidden="true"), said)
        for key, said in words.items()
    ]
    return tag("ul", *items, class_="legend")
