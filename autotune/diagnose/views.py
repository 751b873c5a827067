"""What the lane view can show beside the worst step: every step of every rank, small and packed, in the page itself.

The traces are read again, a process each; the page stays within MOST_BYTES whatever they hold.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from analyzers import processes
from analyzers.diagnosis import Analysis, Partition, TraceReport
from analyzers.errors import TraceError
from analyzers.lanes import diagnosed, lanes_of
from analyzers.range_tree import Node, range_tree
from autotune.diagnose.lanes import EVENTS, lanes_document
from autotune.looks.segments import mean_step_us, steps_of

MOST_BYTES = 1_000_000  # of all packed views
BYTES_OF_AN_EVENT = 10  # packed, about
FEWEST_EVENTS = 400  # of a view: below it tells little
VIEWS = 240


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One trace read again. views: by the number of the step, packed; tree: its ranges, of the first trace only."""

    views: dict[int, str]
    tree: tuple[Node, ...] = ()


def drawn_again(analysis: Analysis, first: TraceReport, worst: Partition) -> tuple[dict[int, Drawn], tuple[Node, ...]]:
    """Of each trace (by its place) its steps as packed views, without the worst step of `first`, and the range tree of
    that one. Traces that are gone are left out."""
    order = sorted(range(len(analysis.traces)), key=lambda at: -mean_step_us(analysis.traces[at]))
    order.sort(key=lambda at: analysis.traces[at] is not first)
    chosen = dict(_chosen(analysis, order, first, worst))
    count = sum(map(len, chosen.values()))
    events = min(EVENTS, max(FEWEST_EVENTS, MOST_BYTES // BYTES_OF_AN_EVENT // max(count, 1)))
    read = partial(_read, analysis=analysis, chosen=chosen, first=analysis.traces.index(first), events=events)
    found = dict(_each(read, list(chosen)))
    room, kept = MOST_BYTES, {}
    for at in chosen:
        views = {}
        for number, text in found[at].views.items():
            room -= len(text)
            if room >= 0:
                views[number] = text
        kept[at] = Drawn(views=views)
    return kept, found[analysis.traces.index(first)].tree


def _chosen(
    analysis: Analysis, order: list[int], first: TraceReport, worst: Partition
) -> Iterator[tuple[int, list[int]]]:
    """Places of traces and numbers of their steps, VIEWS at most; the first trace comes first."""
    left = VIEWS
    for at in order:
        trace = analysis.traces[at]
        numbers = [k for k, step in enumerate(steps_of(trace)) if trace is not first or step is not worst][:left]
        left -= len(numbers)
        if numbers or trace is first:
            yield at, numbers


def _each(read: partial[Drawn], places: list[int]) -> Iterator[tuple[int, Drawn]]:
    cores = len(os.sched_getaffinity(0))
    if len(places) < 2 or cores < 2 or not processes.can_start():
        yield from ((at, read(at)) for at in places)
        return
    for at, drawn in processes.each(read, places, at_once=cores):
        yield at, Drawn(views={}) if isinstance(drawn, processes.Died) else drawn


def _read(at: int, *, analysis: Analysis, chosen: dict[int, list[int]], first: int, events: int) -> Drawn:
    trace = analysis.traces[at]
    try:
        breakdown = diagnosed(trace)
    except TraceError:
        return Drawn(views={})
    steps = steps_of(trace)
    views = {}
    for number in chosen[at]:
        found = lanes_of(breakdown, start_us=steps[number].start_us, end_us=steps[number].end_us)
        views[number] = packed(json.dumps(lanes_document(found, events), separators=(",", ":")))
    return Drawn(views=views, tree=tuple(range_tree(breakdown)) if at == first else ())


def packed(text: str) -> str:
    """Deflated (zlib) and in base64: a browser unpacks it without a library."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()
