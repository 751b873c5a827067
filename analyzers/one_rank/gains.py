"""Computes how much shorter each step would be without the work that each wall counts, by replaying the rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzers.diagnosis import Wall
from analyzers.intervals import EMPTY, Intervals, intersect, merge, subtract, union
from analyzers.kernel_classes import ARITHMETIC, COMPUTE_CLASSES, MEMORY_BOUND, RECOMPUTE
from analyzers.one_rank.breakdown import Breakdown
from analyzers.one_rank.rank_step import OFFLOAD
from analyzers.timeline import Spans

# Shares of compute that replays remove: first of all but arithmetic, then, with all of that removed, of arithmetic
SHARES_OF_OTHERS = (0.5, 1.0)
SHARES_OF_ARITHMETIC = (0.25, 0.5, 0.75, 1.0)


def gains(breakdown: Breakdown, short: Intervals) -> dict[str, list[float]]:
    """Returns, by wall, how many µs shorter each step would be without the work that the wall counts; {} if the rank is
    not replayed.

    short: the time of short kernels.
    """
    work, replayed = breakdown.work, breakdown.replay
    if replayed is None:
        return {}
    memory_bound = [work.compute_by_class.get(name, EMPTY) for name in MEMORY_BOUND]
    again = merge((breakdown.recompute_issue, breakdown.allocating))
    counted: dict[str, tuple[Intervals, Intervals]] = {
        Wall.COMMUNICATION: (subtract(work.exposed_communication, work.copies), EMPTY),
        Wall.MEMORY: (work.recomputing, again),
        Wall.COMPUTE: (merge((*memory_bound, short)), EMPTY),
    }
    if len(work.exposed_copies):
        counted[OFFLOAD] = (merge((work.recomputing, work.exposed_copies)), again)
    return {wall: replayed.saved_us(*parts) for wall, parts in counted.items() if any(len(part) for part in parts)}


def gains_by_compute(breakdown: Breakdown, computing: Intervals) -> dict[float, list[float]]:
    """Returns how many µs shorter each step would be if compute kernels were shorter, by how much they are.

    At key s up to 1, kernels of classes not in ARITHMETIC are shorter by the fraction s; at key 1 + s, these take no
    time and arithmetic kernels are shorter by the fraction s. Compute that hides communication or copies counts as
    unchanged. {} if the rank is not replayed or computes nothing.
    """
    replayed = breakdown.replay
    if replayed is None or not len(computing):
        return {}
    work = breakdown.work
    hides = merge((work.communication, work.copies))
    products = kernels_of(breakdown, ARITHMETIC)
    rest = kernels_of(breakdown, [name for name in COMPUTE_CLASSES if name not in (*ARITHMETIC, RECOMPUTE)])
    arithmetic = products.covered()
    others = subtract(computing, arithmetic)
    saved = {
        share: intersect(merge((_last(rest, share), _last(work.graphs, share))), others) for share in SHARES_OF_OTHERS
    }
    saved |= {1 + share: merge((others, _last(products, share))) for share in SHARES_OF_ARITHMETIC}
    return {share: replayed.saved_us(subtract(part, hides)) for share, part in saved.items()}


def _last(events: Spans | Intervals, share: float) -> Intervals:
    """Returns the last fraction `share` of each event."""
    start, end = (events.start_us, events.end_us) if isinstance(events, Spans) else (events.start, events.end)
    return union(end - share * (end - start), end)


def kernels_of(breakdown: Breakdown, compute_classes: Sequence[str]) -> Spans:
    """Returns the kernels of some classes; empty on CPUs."""
    label, events = breakdown.work.label, breakdown.timeline.device.spans
    codes = [COMPUTE_CLASSES.index(name) for name in compute_classes]
    return events.take(np.zeros(0, dtype=np.int64) if label is None else np.isin(label, codes))
