"""Computes which rank waited for which: in a collective all ranks wait for the last one to arrive, then all transfer.

On aligned clocks, the wait of each rank ends when the last one arrives. Without traces of the other ranks, waiting can
only be bounded: the shortest of similar collectives bounds the transfer, and the time that others take beyond it may be
waiting. A pipeline's send or receive that occupies the device longer than its shortest similar one waits for its peer:
the bubble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.intervals import Bools, Floats, Intervals, subtract, union
from analyzers.kernel_classes import KINDS, PIPELINE
from analyzers.one_rank.digest import Digest
from analyzers.ranks.clocks import Clock, median
from analyzers.ranks.matching import NONE, Match, met
from analyzers.timeline import Ints

# sizes within a quarter of an octave are similar: uneven exchanges repeat no size exactly
SIZES_AN_OCTAVE = 4
EXCHANGES = ("ep_dispatch", "ep_combine")
# dispatch in one byte per element, combine in two, and by a slower kernel: a larger ratio of their times is waiting
MAX_ROUND_TRIP_RATIO = 4.0
ALIKE_IN_ALL_LAYERS = ("ep_dispatch", "ep_combine", PIPELINE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Waits:
    """One rank's waiting in communication, by kind, on its own clock.

    waiting: for another rank; maybe: possible waiting, since not all participating ranks are known; late_us:
    float64[S], how much later than the median rank it arrived, summed over the collectives of each shared step.
    """

    waiting: Mapping[str, Intervals]
    maybe: Mapping[str, Intervals]
    late_us: Mapping[str, Floats]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Arrivals:
    """The arrivals at one rank's N collectives.

    last_us: float64[N], when the last rank arrived, on this rank's clock (its own start where not matched); matched,
    complete: bool[N], complete if all participating ranks are known; late_us: float64[N], how late this rank arrived.
    """

    last_us: Floats
    matched: Bools
    complete: Bools
    late_us: Floats


def waiting(
    ranks: Sequence[Digest], shared: Sequence[Sequence[int]], matches: Sequence[Match], clocks: Sequence[Clock]
) -> list[Waits]:
    """Returns the waiting of each rank.

    shared: for each rank, the numbers of the steps that all ranks have, in the same order.
    """
    arrivals = _arrivals(ranks, matches, clocks)
    return [_waits(rank, found, steps) for rank, found, steps in zip(ranks, arrivals, shared, strict=True)]


def _arrivals(ranks: Sequence[Digest], matches: Sequence[Match], clocks: Sequence[Clock]) -> list[_Arrivals]:
    found = [
        _Arrivals(
            last_us=rank.collectives.start_us.copy(),
            matched=np.zeros(len(rank.collectives.start_us), dtype=bool),
            complete=np.zeros(len(rank.collectives.start_us), dtype=bool),
            late_us=np.zeros(len(rank.collectives.start_us)),
        )
        for rank in ranks
    ]
    all_traced = all(rank.world_size == len(ranks) for rank in ranks)
    for group in matches:
        start, end = aligned(ranks, group, clocks)
        last = np.fmax.reduce(start, axis=0)
        middle = median(start.T)
        whole = all_traced or group.call.group_size == len(group.rank)
        everyone = np.logical_and.reduce(~np.isnan(start), axis=0) & whole
        for k, place in enumerate(group.rank.tolist()):
            known = ~np.isnan(start[k])
            event, into = group.event[k, known], found[place]
            wait = np.minimum(last - start[k], end[k] - start[k])[known]
            into.last_us[event] += wait
            into.late_us[event] = np.maximum(start[k] - middle, 0.0)[known]
            into.matched[event] = True
            into.complete[event] = everyone[known]
    return found


def aligned(ranks: Sequence[Digest], group: Match, clocks: Sequence[Clock]) -> tuple[Floats, Floats]:
    """Returns start and end on one clock, float64[R, N]; NaN where a rank was not in the collective with the others."""
    start, end = group.times(ranks)
    for k, place in enumerate(group.rank.tolist()):
        start[k], end[k] = clocks[place].common(start[k]), clocks[place].common(end[k])
    apart = ~met(start, end)
    start[apart], end[apart] = np.nan, np.nan
    return start, end


def _waits(rank: Digest, arrivals: _Arrivals, steps: Sequence[int]) -> Waits:
    found = rank.collectives
    kind = np.array([KINDS.index(call.kind) for call in found.calls], dtype=np.int64)[found.call]
    if rank.on_cpu:  # on CPUs a pending receive is counted as bubble already, and a send ends with its receive
        arrivals.complete[kind == KINDS.index(PIPELINE)] = True
    last, end = arrivals.last_us, found.end_us
    transfer = end - last
    shortest = _shortest_like(rank, transfer)
    held = (kind == KINDS.index(PIPELINE)) & ~arrivals.complete & ~arrivals.matched
    until = np.where(held, end - shortest, last)
    # even the shortest pipeline transfer without a known peer may be waiting
    maybe = np.where(arrivals.complete, until, np.where(held, end, end - shortest))
    in_step = rank.step_of(found.start_us, steps)
    weights = rank.repeats.weights(found.start_us)
    late_us = arrivals.late_us if weights is None else arrivals.late_us * weights
    by_kind = {KINDS[code]: kind == code for code in np.unique(kind).tolist()}
    waited = {
        name: subtract(union(found.start_us[own], until[own]), union(until[own], end[own]))
        for name, own in by_kind.items()
    }
    return Waits(
        waiting=waited,
        maybe={name: subtract(union(until[own], maybe[own]), waited[name]) for name, own in by_kind.items()},
        late_us={
            name: np.bincount(in_step[late], late_us[late], minlength=len(steps)).astype(np.float64)
            for name, own in by_kind.items()
            if (late := own & arrivals.matched & (in_step >= 0)).any()
        },
    )


def _shortest_like(rank: Digest, transfer: Floats) -> Floats:
    """Returns float64[N]: the shortest time of similar collectives, those that move as much data.

    Similar are collectives of one name, process group and size class. If sizes are not known: those at the same
    position in each step, or, for kinds that are alike in all layers, those launched by the same thread (forward and
    backward differ).
    """
    if not len(transfer):
        return transfer
    found = rank.collectives
    sizes = [_size_class(call.size_bytes) for call in found.calls]
    named: dict[object, int] = {}
    label = np.array(
        [named.setdefault((call.of_any_size, size), len(named)) for call, size in zip(found.calls, sizes, strict=True)]
    )[found.call]
    by_layer = np.array([call.kind in ALIKE_IN_ALL_LAYERS for call in found.calls])[found.call]
    unsized = np.array(sizes)[found.call] == NONE
    apart = np.where(by_layer, found.thread, _place_in_step(rank, label))
    _, like = np.unique(np.stack([label, np.where(unsized, apart, NONE)]), axis=1, return_inverse=True)
    shortest = np.full(len(transfer), np.inf)
    np.minimum.at(shortest, like.ravel(), transfer)
    unlike = unsized & ~by_layer & (apart == NONE)
    return _within_round_trip(rank, np.where(unlike, transfer, shortest[like.ravel()]))


def _within_round_trip(rank: Digest, shortest: Floats) -> Floats:
    """Limits the times of exchanges with experts, float64[N], to MAX_ROUND_TRIP_RATIO times the shortest one of the
    rank, since dispatch and combine move the same tokens in forward and in backward."""
    kinds = [call.kind in EXCHANGES for call in rank.collectives.calls]
    exchanged: Bools = np.array(kinds, dtype=bool)[rank.collectives.call]
    if not exchanged.any():
        return shortest
    return np.where(exchanged, np.minimum(shortest, MAX_ROUND_TRIP_RATIO * shortest[exchanged].min()), shortest)


def _size_class(size_bytes: int | None) -> int:
    return round(SIZES_AN_OCTAVE * float(np.log2(size_bytes))) if size_bytes else NONE


def _place_in_step(rank: Digest, label: Ints) -> Ints:
    """Returns int64[N]: the position of each collective among those with its label in its step; NONE outside steps."""
    found = rank.collectives
    step = rank.step_of(found.start_us, range(len(rank.steps)))
    order = np.lexsort((found.end_us, found.start_us, step, label))
    begins = np.concatenate(([True], (np.diff(label[order]) != 0) | (np.diff(step[order]) != 0)))
    at = np.arange(len(order))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = at - np.maximum.accumulate(np.where(begins, at, 0))
    return np.where(step >= 0, place, NONE)
