"""What of a trace could not be read, by what it was and why; some of it means that its end is missing."""

from __future__ import annotations

from collections import Counter

from analyzers.diagnosis import Dropped

DAMAGED = "the file is damaged there"
CUT_FILE = "the file is cut short there"
CUT_GZIP = "the gzip stream is cut short"
DAMAGED_GZIP = "the gzip stream is damaged: nothing after that can be read"
HOLE = "zeros stand in its place, how much it was is not known"
NO_EVENTS = "no list of events could be found"
NO_TIMES = "no start time, no duration, or a negative one"
NEVER_ENDED = "begun and never ended, or ended and never begun"
# after these a part of the trace is missing, and nobody knows how large a one
CUT_SHORT = frozenset({CUT_FILE, CUT_GZIP, DAMAGED_GZIP, HOLE})


class Losses:
    """Counts of what was lost, one for each thing and reason however many places it was lost in."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, what: str, count: int, why: str) -> None:
        if count:
            self._counts[what, why] += count

    def dropped(self) -> tuple[Dropped, ...]:
        return tuple(Dropped(what=what, count=count, why=why) for (what, why), count in self._counts.items())
