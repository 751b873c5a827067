"""Shows a progress line during long work: the work and its duration, removed at the end.

It is written to stderr, only on a terminal, and only after a second.
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
    """Shows a progress line during one long piece of work. Do not fork inside: a thread writes the line."""
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
    """Shows a progress line for many pieces; yields a function (done, total) that updates it.

    Uses no thread: forking is safe.
    """
    line = _Line(stream or sys.stderr, after_s)
    try:
        yield lambda done, of: line.show(f"{words}: {done} of {of}")
    finally:
        line.clear()


def _tick(line: _Line, words: str, ended: Event) -> None:
    while not ended.wait(EVERY_S):
        line.show(words)


class _Line:
    """The last line of a terminal, overwritten on each update. `seen`: True if the stream is a terminal."""

    def __init__(self, stream: TextIO, after_s: float) -> None:
        self._stream, self._after_s = stream, after_s
        self.seen = stream.isatty()
        self._started, self._shown = time.monotonic(), False

    def show(self, text: str) -> None:
        took = time.monotonic() - self._started
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
