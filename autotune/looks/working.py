"""Where a terminal waits: a line that says what takes so long and for how long already, gone when it is done.

It is written to stderr, only where someone is looking, and only after a second.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TextIO

AFTER_S = 1.0
EVERY_S = 0.2


@contextmanager
def working(words: str, *, stream: TextIO | None = None, after_s: float = AFTER_S) -> Iterator[None]:
    """Around one long piece of work. No process may be forked inside: a thread writes."""
    line, ended = _Line(stream or sys.stderr, after_s), Event()
    thread = Thread(target=_tick, args=(line, words, ended), daemon=True)
    if line.seen:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if line.seen:
            thread.join()
        line.clear()


@contextmanager
def counting(
    words: str, *, stream: TextIO | None = None, after_s: float = AFTER_S
) -> Iterator[Callable[[int, int], None]]:
    """Around many pieces: what is given is told how many are done, of how many. No thread, so that forking is safe."""
    line = _Line(stream or sys.stderr, after_s)
    try:
        yield lambda done, of: line.show(f"{words}: {done} of {of}")
    finally:
        line.clear()


def _tick(line: _Line, words: str, ended: Event) -> None:
    while not ended.wait(EVERY_S):
        line.show(words)


class _Line:
    """The last line of a terminal, written over and over. `seen`: whether there is one."""

    def __init__(self, stream: TextIO, after_s: float) -> None:
        self._stream, self._after_s = stream, after_s
        self.seen = stream.isatty()
        self._began, self._shown = time.monotonic(), False

    def show(self, text: str) -> None:
        took = time.monotonic() - self._began
        if self.seen and took >= self._after_s:
            self._shown = True
            room = shutil.get_terminal_size().columns - 1
            self._write(f"{text}, {took:.0f} s"[:room])

    def clear(self) -> None:
        if self._shown:
            self._write("")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text}\x1b[K")
        self._stream.flush()
