"""Prints tables to a terminal: columns of text wrap instead of being cut off, at any width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from autotune.looks.wrapping import say, wrapped

NARROWEST = 12  # least characters of a column that is wrapped to make room
PLACE = 4  # characters before the text of an entry
BAR = 8  # characters of a bar, if there is room for it


def print_table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns, right-aligned except those whose header starts with `<`; nothing without rows. If they are wider
    than the terminal, the widest column of text wraps."""
    if not rows:
        return
    names, widths = _names(header), _widths(header, rows)
    texts = [at for at, name in enumerate(header) if name.startswith("<")]
    over = width_of(header, rows) - console.width
    if over > 0 and texts:
        widest = max(texts, key=lambda at: widths[at])
        widths[widest] = max(widths[widest] - over, min(widths[widest], NARROWEST))
    console.print()
    say(console, title, style="bold")
    for index, row in enumerate((names, *rows)):
        broken = [_broken(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*broken, fillvalue=""):
            cells = [
                f"{cell:<{width}}" if at in texts else f"{cell:>{width}}"
                for at, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            console.print(f" {'  '.join(cells)}".rstrip(), style="" if index else "dim", soft_wrap=True)


def width_of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Returns the width of a table that does not wrap, in characters."""
    widths = _widths(header, rows)
    return 1 + sum(widths) + 2 * (len(widths) - 1)


def _names(header: Sequence[str]) -> list[str]:
    return [name.removeprefix("<") for name in header]


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(_names(header), *rows, strict=True)]


def _broken(cell: str, width: int) -> list[str]:
    """Wraps a cell into lines, each with the indent of the first."""
    indent = " " * (len(cell) - len(cell.lstrip()))
    return [cell] if len(cell) <= width else wrapped(cell, width, indent=indent)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One item of a list: a title with figures in columns, and paragraphs below it, the last one dim."""

    title: str
    figures: tuple[str, ...]
    below: tuple[str, ...] = ()
    share: float = 0.0  # length of its bar, 0..1
    style: str = "cyan"  # style of its bar


def print_entries(
    console: Console, title: str, figures: Sequence[str], entries: Sequence[Entry], *, first: int = 1
) -> None:
    """Prints entries numbered from `first`, under a header. If titles and figures are wider than the terminal, the
    figures have a line of their own."""
    columns = zip(figures, *(entry.figures for entry in entries), strict=True)
    widths = [max(map(len, column)) for column in columns]
    longest = max(len(text) for text in (title, *(entry.title for entry in entries)))
    room = console.width - PLACE - longest - sum(width + 2 for width in widths)
    bar = BAR if room >= BAR + 2 else 0
    head = Entry(title=title, figures=tuple(figures))
    for number, entry in enumerate((head, *entries), first - 1):
        place, style = (f"{number:>{PLACE - 2}}", "bold") if entry is not head else (" " * (PLACE - 2), "")
        cells = "".join(f"  {figure:>{width}}" for figure, width in zip(entry.figures, widths, strict=True))
        if room >= 0:
            line = Text(f"{place}  ").append(entry.title, style=style)
            line.pad_right(PLACE + longest - len(line))
            line.append(cells).append("  ").append("█" * round(bar * entry.share), style=entry.style)
            line.rstrip()
            console.print(line, soft_wrap=True)
        else:
            say(console, entry.title, lead=f"{place}  ", style=style)
            _print_figures(console, cells, figures, entry)
        for index, paragraph in enumerate(entry.below, 1):
            say(console, paragraph, lead=" " * PLACE, style="dim" if index == len(entry.below) else "")


def _print_figures(console: Console, cells: str, names: Sequence[str], entry: Entry) -> None:
    """Prints figures below their title: in columns, or each with its name if the columns are too wide."""
    indent = " " * (PLACE - 2)
    if len(indent + cells) <= console.width:
        console.print(Text((indent + cells).rstrip()), soft_wrap=True)
    elif entry.figures != tuple(names):
        named = [f"{name} {figure}" for name, figure in zip(names, entry.figures, strict=True) if figure]
        say(console, ", ".join(named), lead=" " * PLACE)
