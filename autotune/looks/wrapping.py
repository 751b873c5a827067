"""Text in a terminal: lines that hang below their first one, and figures that keep their units.

A wrapped line never ends between a figure and its unit, and what came from a trace cannot move the cursor.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.looks.kernel_names import printable

HELD = "\u00a0"  # a space at which no line is broken
UNIT = re.compile(r"(?<=\d) (?=(%|s|ms|µs|GiB)(?!\w))")


class _ShowingConsole(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read our output has seen enough: no failure (rich would end the program with 1)."""
        raise BrokenPipeError


class _PlainConsole(_ShowingConsole):
    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """A text as `wrapped` breaks it; anything else as rich does."""
        if len(objects) == 1 and isinstance(objects[0], str) and not soft_wrap:
            lines = (line for paragraph in objects[0].split("\n") for line in wrapped(paragraph, self.width))
            objects, soft_wrap = ("\n".join(lines),), True
        super().print(*objects, soft_wrap=soft_wrap, **options)


class _LastingConsole(Console):
    def on_broken_pipe(self) -> None:
        """What works through a night goes on without its reader, in silence."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def plain_console() -> Console:
    """Plain text that came from elsewhere stays as it is: no markup, no guessing at numbers."""
    return _PlainConsole(markup=False, highlight=False, emoji=False)


def showing_console() -> Console:
    """Of what shows a study from outside: a pipe that closes ends the command."""
    return _ShowingConsole()


def lasting_console() -> Console:
    """Of the tuner: a pipe that closes does not end a study."""
    return _LastingConsole()


def wrapped(text: str, width: int, *, indent: str = "") -> list[str]:
    """The lines of a text, at most `width` characters each, all but the first indented; `HELD` holds words together."""
    kept = UNIT.sub(HELD, printable(text))
    lines = textwrap.wrap(kept, max(width, 12), subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(HELD, " ") for line in lines] or [""]


def say(console: Console, text: str, *, lead: str = "", style: str = "") -> None:
    """A paragraph; `lead` stands before its first line, and the others are indented below the text."""
    indent = " " * len(lead)
    for index, line in enumerate(wrapped(text, console.width - len(lead))):
        console.print(Text(((indent if index else lead) + line).rstrip()), style=style, soft_wrap=True)


def listed(items: list[str]) -> str:
    """Items side by side, each of which stays in one line."""
    return "  ".join(item.replace(" ", HELD) for item in items)
