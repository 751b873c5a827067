"""Tables in a terminal: columns of text that are never cut off, whatever its width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from rich.console import Console

from autotune.looks.wrapping import say

NARROWEST = 12  # a column of text that gives way to the others


def print_table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of text, right-aligned but for those whose header begins with `<`; nothing for no rows. Where they are
    wider than the terminal, the widest column of text is broken into lines."""
    if not rows:
        return
    names = [name.removeprefix("<") for name in header]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    texts = [at for at, name in enumerate(header) if name.startswith("<")]
    over = 1 + sum(widths) + 2 * (len(widths) - 1) - console.width
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


def _broken(cell: str, width: int) -> list[str]:
    """The lines of a cell, each after its first as far indented as that."""
    indent = " " * (len(cell) - len(cell.lstrip()))
    return [cell] if len(cell) <= width else textwrap.wrap(cell, width, subsequent_indent=indent)
