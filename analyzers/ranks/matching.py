"""Matches the collectives of several ranks: finds which are the same one.

Ranks that issue a collective of one name (in one process group, if NCCL's arguments give it) issue it in the same
order. If the group is not known, or ranks recorded different numbers, the ends decide: on two ranks that were in the
same collectives they differ by a constant. Those that do not agree are other groups, or not matched at all.
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

SAMPLE = 64  # collectives that suffice to distinguish groups
ENOUGH = 3  # collectives whose ends agree by more than chance
AGREEING = 0.8  # share of collectives whose ends must agree on ranks that were in them together
# or EXACT of them, at least MANY, must agree exactly: a thread that woke up late ends some collectives late
EXACT, MANY = DENSE, 6
NEARLY_ALL = 0.9  # share of the collectives that ranks of one clock must have been in at once
# how far ends may differ on ranks of one collective: kernels end a few µs apart, uneven exchanges by more
UNEVEN_US = 40.0
UNEVEN_SHARE = 0.1  # of its time, waiting included
NONE = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Match:
    """N collectives that R ranks were in.

    rank: int64[R], places in the list of digests; event: int64[R, N], indices into each rank's collectives, NONE
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
    """The collectives one rank issued of one call. event: int64[K], in order; step: int64[K], which of the shared
    steps."""

    rank: int
    event: Ints
    step: Ints


def match(ranks: Sequence[Digest], shared: Sequence[Sequence[int]]) -> list[Match]:
    """Matches the collectives of all ranks; shared: for each rank the numbers of the steps that all ranks have, in
    one order."""
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
    """Yields the ends that each rank has in common with the first of its group."""
    for found in matches:
        _, end = found.times(ranks)
        for k in range(1, len(found.rank)):
            both = ~np.isnan(end[0]) & ~np.isnan(end[k])
            a, b = int(found.rank[0]), int(found.rank[k])
            second = end[k][both]
            first = second + (ranks[b].origin_us - ranks[a].origin_us) if found.one_clock[k] else end[0][both]
            yield Pair(first=a, second=b, first_us=first, second_us=second)


def tolerance(start: Floats, end: Floats) -> Floats:
    """Returns float64[N]: how far the ends of each collective may differ; start, end: float64[R, N]."""
    longest: Floats = np.fmax.reduce(end - start, axis=0)
    return np.maximum(UNEVEN_US, UNEVEN_SHARE * longest)


def met(start: Floats, end: Floats) -> Bools:
    """Returns bool[R, N]: the ranks that were in the collective with the others; start, end: float64[R, N] on one
    clock.

    No rank enters after the median rank is done, and none is done before the last has entered.
    """
    late = tolerance(start, end)
    came = start <= median(end.T) + late
    last = np.fmax.reduce(np.where(came, start, np.nan), axis=0)
    there = came & (end >= last - late)
    together: Bools = there & (np.count_nonzero(there, axis=0) > 1)
    return together


def _issued(place: int, rank: Digest, steps: Sequence[int]) -> Iterator[tuple[Call, _Issued]]:
    """Yields a rank's collectives by call, without its size: an uneven exchange has another one on each rank."""
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
    """Returns the matches of the alignment that matches most: within each step, from the first recorded, or from the
    last."""
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
    """Returns int64[R, N]: column k is the k-th in a step with as many collectives of the rank.

    So ranks with different numbers of collectives in a step are not matched there; collectives outside the shared
    steps are left out.
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
    """Yields groups of ranks whose ends agree with the first one's, then of the rest those that agree with its
    first, and so on."""
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
    """Returns bool[R]: the ranks that were in the collectives with the first one.

    Their ends differ by a constant, and they were in most at one time; a few collectives suffice only on one clock,
    or if the process group is known.
    """
    fitted, one_clock = _fitted(ranks, rank, start, end)
    known = np.count_nonzero(~np.isnan(fitted.residual_us), axis=1)
    longest = median(np.fmax(end - start, (end - start)[0]))
    at_once = np.abs(fitted.shift_us - _shift_of_origins(ranks, rank)) <= np.maximum(UNEVEN_US, UNEVEN_SHARE * longest)
    sure = (known > 0) if call.group else (known >= ENOUGH) | ((known > 0) & at_once)
    together = np.count_nonzero(_met_first(start, end, fitted), axis=1) >= AGREEING * known
    agree: Bools = sure & together & (one_clock | _ends_agree(start, end, fitted))
    agree[0] = True
    return agree


def _fitted(ranks: Sequence[Digest], rank: Ints, start: Floats, end: Floats) -> tuple[Fit, Bools]:
    """Returns the fit to the first rank, and the ranks whose clock is used unchanged instead.

    That is for ranks on CPUs, whose threads often wake up late, if by their clocks they were in nearly all
    collectives at once.
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
    """Returns float64[R]: by their own clocks, how far the ranks' origins are after the first one's."""
    origin = np.array([ranks[r].origin_us for r in rank.tolist()])
    shift: Floats = origin - origin[0]
    return shift


def _agreed(ranks: Sequence[Digest], call: Call, rank: Ints, event: Ints) -> Iterator[Match]:
    """Yields the match without the single events that do not fit."""
    start, end = _times(ranks, rank, event)
    fitted, one_clock = _fitted(ranks, rank, start, end)
    fits = _met_first(start, end, fitted)
    fits[0] = fits[1:].any(axis=0)
    kept = fits[0]
    if kept.any():
        yield Match(call=call, rank=rank, event=np.where(fits, event, NONE)[:, kept], one_clock=one_clock)


def _met_first(start: Floats, end: Floats, fitted: Fit) -> Bools:
    """Returns bool[R, N]: where each rank was in the collective at the same time as the first one."""
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
