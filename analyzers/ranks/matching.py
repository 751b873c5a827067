"""Matches the collectives of several ranks: finds which of them are the same one.

Ranks issue the collectives of one name (in one process group, if NCCL's arguments give it) in the same order. If the
group is not known, or the ranks recorded different numbers of them, the ends decide: for two ranks in the same
collectives they differ by a constant. Collectives that do not agree belong to other groups, or stay unmatched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.intervals import Bools, Floats
from analyzers.one_rank.digest import Call, Digest
from analyzers.ranks.clocks import DENSE, Fit, Pair, fit, median
from analyzers.timeline import Ints

SAMPLE = 64  # number of collectives that suffices to distinguish groups
MIN_AGREEING = 3  # number of collectives whose ends agree by more than chance
AGREEING = 0.8  # share of collectives whose ends must agree on ranks that were in them together
# ends agree as well if they do within UNEVEN_US for at least MANY collectives and at least the share EXACT of them: a
# thread that wakes up late ends some collectives late
EXACT, MANY = DENSE, 6
NEARLY_ALL = 0.9  # share of the collectives that ranks of one clock must have been in at once
# largest difference of a collective's ends on its ranks: kernels end a few µs apart, uneven exchanges by more
UNEVEN_US = 40.0
UNEVEN_SHARE = 0.1  # largest difference as a share of the collective's time, waiting included
NONE = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Match:
    """N collectives in which R ranks took part.

    rank: int64[R], indices into the list of digests; event: int64[R, N], indices into each rank's collectives, NONE
    where a rank's is not known.
    """

    call: Call
    rank: Ints
    event: Ints
    one_clock: Bools  # bool[R]: the rank's clock is the first one's, even if their ends differ

    def times(self, ranks: Sequence[Digest]) -> tuple[Floats, Floats]:
        """Returns start and end, float64[R, N], each on its rank's own clock; NaN where not known."""
        return _times(ranks, self.rank, self.event)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Issued:
    """The collectives of one call that one rank issued.

    event: int64[K], in order; step: int64[K], the index of the shared step.
    """

    rank: int
    event: Ints
    step: Ints


def match(ranks: Sequence[Digest], shared: Sequence[Sequence[int]]) -> list[Match]:
    """Returns the matches of the collectives of all ranks.

    shared: for each rank, the numbers of the steps that all ranks have, in the same order.
    """
    issued: dict[Call, list[_Issued]] = defaultdict(list)
    for place, (rank, steps) in enumerate(zip(ranks, shared, strict=True)):
        for call, found in _issued(place, rank, steps):
            issued[call].append(found)
    return [
        found
        for call, members in sorted(issued.items(), key=lambda item: repr(item[0]))
        if len(members) > 1
        for found in _best(ranks, call, members)
    ]


def pairs(ranks: Sequence[Digest], matches: Sequence[Match]) -> Iterator[Pair]:
    """Yields the ends of collectives that each rank shares with the first rank of its match."""
    for found in matches:
        _, end = found.times(ranks)
        for k in range(1, len(found.rank)):
            both = ~np.isnan(end[0]) & ~np.isnan(end[k])
            a, b = int(found.rank[0]), int(found.rank[k])
            second = end[k][both]
            first = second + (ranks[b].origin_us - ranks[a].origin_us) if found.one_clock[k] else end[0][both]
            yield Pair(first=a, second=b, first_us=first, second_us=second)


def tolerance(start: Floats, end: Floats) -> Floats:
    """Returns float64[N]: by how many µs the ends of each collective may differ; start, end: float64[R, N]."""
    longest: Floats = np.fmax.reduce(end - start, axis=0)
    return np.maximum(UNEVEN_US, UNEVEN_SHARE * longest)


def met(start: Floats, end: Floats) -> Bools:
    """Returns bool[R, N]: the ranks that were in the collective together; start, end: float64[R, N] on one clock.

    A rank that enters after the median rank has left was not in it, nor was a rank that left before the last one
    entered.
    """
    late = tolerance(start, end)
    came = start <= median(end.T) + late
    last = np.fmax.reduce(np.where(came, start, np.nan), axis=0)
    there = came & (end >= last - late)
    together: Bools = there & (np.count_nonzero(there, axis=0) > 1)
    return together


def _issued(place: int, rank: Digest, steps: Sequence[int]) -> Iterator[tuple[Call, _Issued]]:
    """Yields a rank's collectives by call.

    Sizes are ignored, since those of an uneven exchange differ between ranks.
    """
    found = rank.collectives
    labels: dict[Call, list[int]] = defaultdict(list)
    for code, call in enumerate(found.calls):
        if call.by_order:
            labels[call.of_any_size].append(code)
    step = rank.step_of(found.start_us, steps)
    order = np.lexsort((found.end_us, found.start_us))
    for call, codes in labels.items():
        event: Ints = order[np.isin(found.call[order], codes)]
        if len(event):
            yield call, _Issued(rank=place, event=event, step=step[event])


def _best(ranks: Sequence[Digest], call: Call, members: Sequence[_Issued]) -> list[Match]:
    """Returns the matches of the alignment that matches most: within each step, from the first recorded collective, or
    from the last."""
    best: list[Match] = []
    most = 0
    whole = sum(len(member.event) for member in members)
    for alignment in (_by_step, _from_first, _from_last):
        found = list(_groups(ranks, call, np.array([m.rank for m in members]), alignment(members)))
        matched = sum(int((group.event != NONE).sum()) for group in found)
        if matched > most:
            best, most = found, matched
        if most == whole:
            break
    return best


def _by_step(members: Sequence[_Issued]) -> Ints:
    """Returns int64[R, N]: each column has every rank's k-th collective of one step.

    Ranks whose numbers of collectives in a step differ are not matched there; collectives outside the shared steps are
    left out.
    """
    steps = 1 + max(int(member.step.max(initial=NONE)) for member in members)
    counts = np.stack([np.bincount(m.step[m.step >= 0], minlength=steps) for m in members])
    blocks = np.unique(np.stack([np.broadcast_to(np.arange(steps), counts.shape).ravel(), counts.ravel()]), axis=1)
    first = np.concatenate(([0], np.cumsum(blocks[1])))
    begins_at = {(step, count): begin for step, count, begin in zip(*blocks.tolist(), first.tolist()[:-1], strict=True)}
    table = np.full((len(members), int(first[-1])), NONE, dtype=np.int64)
    for row, member, own in zip(table, members, counts, strict=True):
        events = member.event[member.step >= 0]
        for step, (count, until) in enumerate(zip(own.tolist(), np.cumsum(own).tolist(), strict=True)):
            begin = begins_at[step, count]
            row[begin : begin + count] = events[until - count : until]
    return table


def _from_first(members: Sequence[_Issued]) -> Ints:
    table = np.full((len(members), max(len(m.event) for m in members)), NONE, dtype=np.int64)
    for row, member in zip(table, members, strict=True):
        row[: len(member.event)] = member.event
    return table


def _from_last(members: Sequence[_Issued]) -> Ints:
    table = np.full((len(members), max(len(m.event) for m in members)), NONE, dtype=np.int64)
    for row, member in zip(table, members, strict=True):
        row[len(row) - len(member.event) :] = member.event
    return table


def _groups(ranks: Sequence[Digest], call: Call, rank: Ints, event: Ints) -> Iterator[Match]:
    """Yields the matches of groups of ranks: first of those whose ends agree with the first rank's, then the same for
    the remaining ranks, and so on."""
    if not event.shape[1]:
        return
    sample = np.unique(np.linspace(0, event.shape[1] - 1, SAMPLE).astype(np.int64))
    start, end = _times(ranks, rank, event[:, sample])
    left = np.arange(len(rank))
    while len(left) > 1:
        agree = _agree(ranks, call, rank[left], start[left], end[left])
        together = left[agree]
        if len(together) > 1:
            yield from _agreed(ranks, call, rank[together], event[together])
        left = left[~agree]


def _agree(ranks: Sequence[Digest], call: Call, rank: Ints, start: Floats, end: Floats) -> Bools:
    """Returns bool[R]: the ranks that were in the collectives of the first one.

    Their ends differ by a constant, and most of their collectives overlapped in time. A few collectives are enough only
    on one clock, or if the process group is known.
    """
    fitted, one_clock = _fitted(ranks, rank, start, end)
    known = np.count_nonzero(~np.isnan(fitted.residual_us), axis=1)
    longest = median(np.fmax(end - start, (end - start)[0]))
    at_once = np.abs(fitted.shift_us - _shift_of_origins(ranks, rank)) <= np.maximum(UNEVEN_US, UNEVEN_SHARE * longest)
    sure = (known > 0) if call.group else (known >= MIN_AGREEING) | ((known > 0) & at_once)
    together = np.count_nonzero(_met_first(start, end, fitted), axis=1) >= AGREEING * known
    agree: Bools = sure & together & (one_clock | _ends_agree(start, end, fitted))
    agree[0] = True
    return agree


def _fitted(ranks: Sequence[Digest], rank: Ints, start: Floats, end: Floats) -> tuple[Fit, Bools]:
    """Returns the fit to the first rank, and bool[R]: the ranks whose recorded clock is used instead of the fit.

    Those are ranks on CPUs, whose threads often wake up late, if nearly all of their collectives overlap by the
    recorded clocks.
    """
    fitted = fit(end, end[0])
    on_cpu = np.array([ranks[r].on_cpu for r in rank.tolist()])
    if not on_cpu.any():
        return fitted, on_cpu
    shift = _shift_of_origins(ranks, rank)
    residual = end[0] - end - shift[:, None]
    as_it_is = Fit(shift_us=shift, rate=np.zeros(len(end)), spread_us=median(np.abs(residual)), residual_us=residual)
    known = np.count_nonzero(~np.isnan(residual), axis=1)
    met_by_it = np.count_nonzero(_met_first(start, end, as_it_is), axis=1) >= NEARLY_ALL * known
    chosen = on_cpu & on_cpu[0] & met_by_it & (known >= MANY) & ~_ends_agree(start, end, fitted)
    both = Fit(
        shift_us=np.where(chosen, shift, fitted.shift_us),
        rate=np.where(chosen, 0.0, fitted.rate),
        spread_us=np.where(chosen, as_it_is.spread_us, fitted.spread_us),
        residual_us=np.where(chosen[:, None], residual, fitted.residual_us),
    )
    return both, chosen


def _ends_agree(start: Floats, end: Floats, fitted: Fit) -> Bools:
    residual = np.abs(fitted.residual_us)
    known = np.count_nonzero(~np.isnan(residual), axis=1)
    allowed = np.maximum(UNEVEN_US, UNEVEN_SHARE * np.fmax(end - start, (end - start)[0]))
    close = np.count_nonzero(residual <= allowed, axis=1) >= AGREEING * known
    exact = np.count_nonzero(residual <= UNEVEN_US, axis=1) >= np.maximum(MANY, EXACT * known)
    agree: Bools = close | exact
    return agree


def _shift_of_origins(ranks: Sequence[Digest], rank: Ints) -> Floats:
    """Returns float64[R]: by how much the ranks' origins, on their own clocks, are after the first rank's."""
    origin = np.array([ranks[r].origin_us for r in rank.tolist()])
    shift: Floats = origin - origin[0]
    return shift


def _agreed(ranks: Sequence[Digest], call: Call, rank: Ints, event: Ints) -> Iterator[Match]:
    """Yields the match, without single events that do not overlap with the first rank's."""
    start, end = _times(ranks, rank, event)
    fitted, one_clock = _fitted(ranks, rank, start, end)
    fits = _met_first(start, end, fitted)
    fits[0] = fits[1:].any(axis=0)
    kept = fits[0]
    if kept.any():
        yield Match(call=call, rank=rank, event=np.where(fits, event, NONE)[:, kept], one_clock=one_clock)


def _met_first(start: Floats, end: Floats, fitted: Fit) -> Bools:
    """Returns bool[R, N]: where each rank was in the collective at the same time as the first rank."""
    rate, shift = fitted.rate[:, None], fitted.shift_us[:, None]
    begins, ends = start * (1 + rate) + shift, end * (1 + rate) + shift
    late = tolerance(start, end)
    met: Bools = (begins <= end[0] + late) & (ends >= start[0] - late)
    return met


def _times(ranks: Sequence[Digest], rank: Ints, event: Ints) -> tuple[Floats, Floats]:
    start, end = np.full(event.shape, np.nan), np.full(event.shape, np.nan)
    for k, place in enumerate(rank.tolist()):
        known = event[k] != NONE
        found = ranks[place].collectives
        start[k, known], end[k, known] = found.start_us[event[k, known]], found.end_us[event[k, known]]
    return start, end
