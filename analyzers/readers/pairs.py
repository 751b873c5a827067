"""Joins events written as begin (ph B) and end (ph E), the form in which other profilers write Chrome traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter

from analyzers.readers.json_events import Event

HALVES = ("B", "E")


def whole_events(halves: Sequence[Event]) -> tuple[list[Event], int]:
    """Returns events with durations, and the number of begins and ends without their counterpart.

    An end belongs to the latest begin of its thread that is still open; at equal times the order in the file decides.
    """
    timed = [(half.ts, half) for half in halves if half.ts is not None]
    open_now: dict[object, list[tuple[float, Event]]] = defaultdict(list)
    whole = []
    for time, half in sorted(timed, key=itemgetter(0)):
        opened = open_now[half.pid, half.tid]
        if half.ph == "B":
            opened.append((time, half))
        elif opened:
            start, event = opened.pop()
            event.ph, event.dur = "X", time - start
            whole.append(event)
    return whole, len(halves) - 2 * len(whole)
