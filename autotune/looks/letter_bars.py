"""Draws stacked bars of letters, one letter per kind of time: readable without colour, and as copied text.

On a terminal the background is the colour of the wall that the time is lost to.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from analyzers.walls import wall_kinds
from autotune.looks.kernel_names import cut, printable
from autotune.looks.quantities import duration
from autotune.looks.segments import KINDS, Family, NoWall, Segment
from autotune.looks.wrapping import listed, say

LABEL_COLUMNS = 26  # width of the labels at 80 columns; at others a third of the width
TIME_COLUMNS = 9
STYLES = {NoWall.WAIT: "black on white", NoWall.UNKNOWN: "white on bright_black"}


def print_bars(console: Console, rows: Sequence[tuple[str, list[Segment]]]) -> None:
    """Prints (label, segments) as bars on one scale, with a legend of the letters below."""
    labels = [printable(label) for label, _ in rows]
    room = min(max(map(len, labels), default=0), LABEL_COLUMNS * console.width // 80)
    longest = max((sum(part.us for part in parts) for _, parts in rows), default=0.0)
    columns = console.width - room - TIME_COLUMNS - 3
    for label, (_, parts) in zip(labels, rows, strict=True):
        took = duration(sum(part.us for part in parts))
        line = Text(f" {cut(label, room):<{room}} {took:>{TIME_COLUMNS}} ")
        console.print(line.append_text(_bar(parts, longest, columns)), soft_wrap=True)
    seen = {part.kind.key for _, parts in rows for part in parts}
    say(console, listed([f"{kind.glyph} {kind.words}" for kind in KINDS if kind.key in seen]), lead=" ", style="dim")


def _bar(parts: Sequence[Segment], longest: float, columns: int) -> Text:
    """Draws letters in proportion to time.

    Segment ends are rounded, not segment lengths, so that the bar has the right length.
    """
    bar, done = Text(), 0.0
    for part in parts:
        start = round(done / longest * columns)
        done += part.us
        width = round(done / longest * columns) - start
        bar.append(part.kind.glyph * width, style=_style(part.kind.family))
    return bar


def _style(family: Family) -> str:
    return STYLES[family] if isinstance(family, NoWall) else wall_kinds()[family].style
