"""Packs the timeline views of all steps of all ranks, except the worst step, into the page.

Traces whose events were not kept are read again, one process each; all views together stay within MAX_BYTES.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from analyzers import processes
from analyzers.diagnosis import Analysis, Partition, TraceReport
from analyzers.errors import TraceError
from analyzers.lanes import Kept, Lanes, diagnosed, lanes_of
from analyzers.range_tree import Node, range_tree
from autotune.diagnose.lanes import EVENTS, lanes_document
from autotune.looks.segments import mean_step_us, steps_of

MAX_BYTES = 1_000_000  # limit on all packed views together
BYTES_OF_AN_EVENT = 10  # approximate size when packed
MIN_EVENTS = 400  # least number of events in a view
MAX_VIEWS = 240  # most views in the page


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The views of one trace: `views` are packed, by step number; for the first trace also the events of its worst
    step, and the tree of its ranges."""

    views: dict[int, str]
    worst: Lanes | None = None
    tree: tuple[Node, ...] = ()


def drawn_steps(analysis: Analysis, first: TraceReport, worst: Partition, kept: Kept | None = None) -> dict[int, Drawn]:
    """Returns the packed views of each trace, by its index, and the events of the worst step of `first`: at most
    MAX_VIEWS views, which together take at most MAX_BYTES. Other traces that no longer exist are left out; raises
    TraceError if `first` does not."""
    order = sorted(range(len(analysis.traces)), key=lambda at: -mean_step_us(analysis.traces[at]))
    order.sort(key=lambda at: analysis.traces[at] is not first)
    chosen = dict(_chosen(analysis, order, first, worst))
    count = sum(map(len, chosen.values()))
    events = min(EVENTS, max(MIN_EVENTS, MAX_BYTES // BYTES_OF_AN_EVENT // max(count, 1)))
    place = analysis.traces.index(first)
    read = partial(_read, analysis=analysis, chosen=chosen, first=place, worst=worst, events=events)
    found = dict(_each(read, list(chosen), kept))
    if isinstance(gone := found[place], TraceError):
        raise gone
    room, fitting = MAX_BYTES, dict[int, Drawn]()
    for at in chosen:
        one = found[at]
        if isinstance(one, TraceError):
            continue
        views = {}
        for number, text in one.views.items():
            room -= len(text)
            if room >= 0:
                views[number] = text
        fitting[at] = replace(one, views=views)
    return fitting


def _chosen(
    analysis: Analysis, order: list[int], first: TraceReport, worst: Partition
) -> Iterator[tuple[int, list[int]]]:
    """Yields indices of traces and numbers of their steps, MAX_VIEWS at most in all; the first trace comes first."""
    left = MAX_VIEWS
    for at in order:
        trace = analysis.traces[at]
        numbers = [k for k, step in enumerate(steps_of(trace)) if trace is not first or step is not worst][:left]
        left -= len(numbers)
        if numbers or trace is first:
            yield at, numbers


def _each(
    read: Callable[..., Drawn | TraceError], places: list[int], kept: Kept | None
) -> Iterator[tuple[int, Drawn | TraceError]]:
    cores = len(os.sched_getaffinity(0))
    if kept or len(places) < 2 or cores < 2 or not processes.can_start():
        yield from ((at, read(at, kept=kept)) for at in places)
        return
    for at, drawn in processes.each(read, places, at_once=cores):
        yield at, Drawn(views={}) if isinstance(drawn, processes.Died) else drawn


def _read(
    at: int,
    *,
    analysis: Analysis,
    chosen: dict[int, list[int]],
    first: int,
    worst: Partition,
    events: int,
    kept: Kept | None = None,
) -> Drawn | TraceError:
    trace = analysis.traces[at]
    try:
        breakdown = diagnosed(trace, kept)
    except TraceError as error:
        return error
    steps = steps_of(trace)
    views = {}
    for number in chosen[at]:
        found = lanes_of(breakdown, start_us=steps[number].start_us, end_us=steps[number].end_us)
        views[number] = packed(json.dumps(lanes_document(found, events), separators=(",", ":")))
    if at != first:
        return Drawn(views=views)
    whole = lanes_of(breakdown, start_us=worst.start_us, end_us=worst.end_us)
    return Drawn(views=views, worst=whole, tree=tuple(range_tree(breakdown)))


def packed(text: str) -> str:
    """Compresses a text with zlib and encodes it as base64: a browser unpacks it without a library."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()
