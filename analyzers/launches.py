"""Which host call launched a device event, and from which thread and moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.intervals import Bools, Floats
from analyzers.timeline import NO_CORRELATION, Ints, Timeline


@dataclass(frozen=True, kw_only=True, eq=False)
class Launches:
    """For each of M device events: known: bool[M]; start_us, end_us of the launching call: float64[M] (infinite if
    unknown); lane: int64[M]."""

    known: Bools
    start_us: Floats
    end_us: Floats
    lane: Ints


def launches(timeline: Timeline) -> Launches:
    """Join device events to calls by correlation; of nested calls with one id (runtime, driver) the outer."""
    calls = timeline.calls.take(timeline.calls.correlation != NO_CORRELATION)
    order = np.lexsort((calls.start_us, calls.correlation))
    asked = timeline.device.spans.correlation
    if not len(order):
        nothing = np.full(len(asked), -1, dtype=np.int64)
        never = np.full(len(asked), np.inf)
        return Launches(known=nothing > 0, start_us=never, end_us=never, lane=nothing)
    at = np.searchsorted(calls.correlation[order], asked)
    call = order[np.minimum(at, len(order) - 1)]
    known = (asked != NO_CORRELATION) & (calls.correlation[call] == asked)
    return Launches(
        known=known,
        start_us=np.where(known, calls.start_us[call], np.inf),
        end_us=np.where(known, calls.end_us[call], np.inf),
        lane=np.where(known, calls.lane[call], -1),
    )
