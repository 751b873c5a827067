"""Wraps text in a terminal with hanging indents.

A wrapped line never ends between a figure and its unit, and text from a trace cannot move the cursor.
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

NO_BREAK = "\u00a0"  # no line is broken at this space
UNIT = re.compile(r"(?<=\d) (?=(%|s|ms|µs|GiB)(?!\w))")


class _ShowingConsole(Console):
    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError: a reader that closed the pipe is not a failure, for which rich would exit with 1."""
        raise BrokenPipeError


class _PlainConsole(_ShowingConsole):
    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Prints text wrapped by `wrapped`, anything else as rich does."""
        if len(objects) == 1 and isinstance(objects[0], str) and not soft_wrap:
            lines = (line for paragraph in objects[0].split("\n") for line in wrapped(paragraph, self.width))
            objects, soft_wrap = ("\n".join(lines),), True
        super().print(*objects, soft_wrap=soft_wrap, **options)


class _LastingConsole(Console):
    def on_broken_pipe(self) -> None:
        """Continues without output: the study runs on after the reader of its log has ended."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def plain_console() -> Console:
    """Returns a console for text from traces and files: no markup, no number highlighting."""
    return _PlainConsole(markup=False, highlight=False, emoji=False)


def showing_console() -> Console:
    """Returns a console for commands that show a study: a closed pipe ends the command."""
    return _ShowingConsole()


def lasting_console() -> Console:
    """Returns a console for the tuner: a closed pipe does not end the study."""
    return _LastingConsole()


def wrapped(text: str, width: int, *, indent: str = "") -> list[str]:
    """Wraps a text into lines of at most `width` characters (12 if it is less), all but the first indented; `NO_BREAK`
    keeps words together."""
    kept = UNIT.sub(NO_BREAK, printable(text))
    lines = textwrap.wrap(kept, max(width, 12), subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines] or [""]


def say(console: Console, text: str, *, lead: str = "", style: str = "") -> None:
    """Prints a paragraph; `lead` precedes its first line, the others are indented to match."""
    indent = " " * len(lead)
    for index, line in enumerate(wrapped(text, console.width - len(lead))):
        console.print(Text(((indent if index else lead) + line).rstrip()), style=style, soft_wrap=True)


def listed(items: list[str]) -> str:
    """Joins items with spaces; an item is not broken over lines."""
    return "  ".join(item.replace(" ", NO_BREAK) for item in items)
