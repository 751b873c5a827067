"""Counts the parts of a trace that could not be read, by type and reason. Some reasons mean that its end is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analyzers.diagnosis import Dropped

DAMAGED = "the file is damaged there"
CUT_FILE = "the file is cut short there"
CUT_GZIP = "the gzip stream is cut short"
DAMAGED_GZIP = "the gzip stream is damaged: nothing after that can be read"
HOLE = "zeros in its place; how much was lost is unknown"
NO_EVENTS = "no list of events could be found"
NO_TIMES = "no start time or one beyond 1e16 µs, no duration or a negative one"
NEVER_ENDED = "started and never ended, or ended and never started"
# reasons after which a part of unknown size is missing -> how the file is described
CUT_SHORT = {
    CUT_FILE: "cut short",
    CUT_GZIP: "cut short",
    DAMAGED_GZIP: "damaged",
    HOLE: "damaged (zeros in place of events)",
}


class Losses:
    """Counts of lost items, by type and reason, with the first position of each."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._at_bytes: dict[tuple[str, str], int] = {}

    def add(self, what: str, count: int, why: str, *, at_bytes: int | None = None) -> None:
        if count:
            self._counts[what, why] += count
            if at_bytes is not None:
                self._at_bytes.setdefault((what, why), at_bytes)

    def dropped(self) -> tuple[Dropped, ...]:
        return tuple(
            Dropped(what=what, count=count, why=why, at_bytes=self._at_bytes.get((what, why)))
            for (what, why), count in self._counts.items()
        )


def cut_words(dropped: Sequence[Dropped]) -> str:
    """Returns the first reason why the end of a trace is missing, such as `cut short at 48.4 MB`; '' if it is
    complete."""
    for lost in dropped:
        if lost.why in CUT_SHORT:
            return CUT_SHORT[lost.why] + ("" if lost.at_bytes is None else f" at {_size(lost.at_bytes)}")
    return ""


def _size(number: int) -> str:
    """Returns a number of bytes in MB of 10**6, `48.4 MB`; below 100,000 in bytes."""
    return f"{number / 1e6:,.1f} MB" if number >= 1e5 else f"{number:,} bytes"
