"""Finds the host call that launched each device event: its thread, start and return."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from analyzers.intervals import Bools, Floats
from analyzers.timeline import NO_CORRELATION, Ints, Spans, Timeline

LAUNCHING_CALL = re.compile(r"Launch\w*Kernel|GraphLaunch|ModuleLaunch")  # calls of CUDA and HIP that start device work
SHARED_CORRELATION = 0  # some profilers give it to every call that launches nothing


@dataclass(frozen=True, kw_only=True, eq=False)
class Launches:
    """The launches of M device events.

    known: bool[M]; start_us, end_us: float64[M], of the call (infinite if unknown); lane: int64[M], its thread (-1 if
    unknown); first_us: float64[M], when the first work of the same call started on the device (the kernels of a graph
    share one call; infinite if unknown); call: int64[M], its index in the timeline's calls (-1 if unknown).
    """

    known: Bools
    start_us: Floats
    end_us: Floats
    lane: Ints
    first_us: Floats
    call: Ints

    @property
    def lanes(self) -> Ints:
        """Returns the threads that launched any of the events, in order."""
        return np.unique(self.lane[self.known])


def launches(timeline: Timeline) -> Launches:
    """Joins device events to the calls that launched them, by correlation id; of nested calls with one id (runtime,
    driver) takes the outer one."""
    events = timeline.device.spans
    own = _own_correlation(timeline.calls)
    calls = timeline.calls.take(own)
    if not len(calls):
        unknown = np.full(len(events), np.inf)
        nothing = np.full(len(events), -1, dtype=np.int64)
        return Launches(
            known=nothing > 0, start_us=unknown, end_us=unknown, lane=nothing, first_us=unknown, call=nothing
        )
    order = _by_correlation(calls)
    at = np.searchsorted(calls.correlation[order], events.correlation)
    call = order[np.minimum(at, len(order) - 1)]
    known = (events.correlation != NO_CORRELATION) & (calls.correlation[call] == events.correlation)
    first = np.full(len(calls), np.inf)
    np.minimum.at(first, call[known], events.start_us[known])
    return Launches(
        known=known,
        start_us=np.where(known, calls.start_us[call], np.inf),
        end_us=np.where(known, calls.end_us[call], np.inf),
        lane=np.where(known, calls.lane[call], -1),
        first_us=np.where(known, first[call], np.inf),
        call=np.where(known, np.flatnonzero(own)[call], -1),
    )


def unseen(timeline: Timeline, launch: Launches) -> Floats:
    """Returns float64[N], sorted: the times of launches of kernels or graphs that have no device event in the trace.

    Their work may have run where the device looks idle: unrecorded graphs, or events that the profiler lost. A driver
    call inside or around a known runtime call is the same launch.
    """
    calls = timeline.calls
    launching = calls.where(lambda name: LAUNCHING_CALL.search(name) is not None)
    launching &= (calls.correlation > SHARED_CORRELATION) & ~np.isin(
        calls.correlation, timeline.device.spans.correlation
    )
    lost = calls.take(launching)
    if not len(lost):
        return np.empty(0)
    seen_start, seen_end = np.sort(launch.start_us[launch.known]), np.sort(launch.end_us[launch.known])
    around = np.searchsorted(seen_start, lost.end_us) > np.searchsorted(seen_end, lost.start_us, side="right")
    return np.sort(lost.start_us[~around])


def _by_correlation(calls: Spans) -> Ints:
    """Returns int64[N]: the order of the calls by correlation id, of equal ids the outer call first.

    Calls are mostly recorded in that order and then need no sort.
    """
    if np.all(np.diff(calls.correlation) > 0):
        return np.arange(len(calls))
    return np.lexsort((-calls.end_us, calls.start_us, calls.correlation))


def _own_correlation(calls: Spans) -> Bools:
    """Returns bool[N]: the calls with a correlation id of their own.

    False where there is none, and for SHARED_CORRELATION if several calls have it.
    """
    shared = np.count_nonzero(calls.correlation == SHARED_CORRELATION) > 1
    own: Bools = (calls.correlation != NO_CORRELATION) & ~(shared & (calls.correlation == SHARED_CORRELATION))
    return own
