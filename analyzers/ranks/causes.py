"""Attributes waiting for a late rank to what that rank did since both left an earlier collective together.

Ranks that leave a collective together enter the next one at different moments, and what each did in between explains
the difference exactly, part by part. The parts that took the late rank longer are why the others wait for it. If such a
part is itself waiting in another group's collective, the cause of that wait takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.intervals import EMPTY, Bools, Floats
from analyzers.kernel_classes import KINDS, PIPELINE
from analyzers.one_rank.digest import Digest
from analyzers.ranks.clocks import Clock, median
from analyzers.ranks.matching import NONE, Match
from analyzers.ranks.waiting import aligned
from analyzers.timeline import Ints

UNKNOWN = "unknown"  # the ranks left no earlier collective together, or the last rank did no more than the others
MAX_CHAIN = 3  # longest chain of ranks waiting for each other; the cause of a longer one is unknown
TINY_US = 1e-3
MIN_EXPLAINED = 0.5  # share of a rank's lateness that its additional work must explain


@dataclass(frozen=True, kw_only=True, eq=False)
class Caused:
    """The waiting of one rank for another, summed over the shared steps.

    us: float64[P], the waiting by the late rank's own work; late_did_us, did_us: float64[P], what the late rank and the
    waiting rank did before.
    """

    us: Floats
    late_did_us: Floats
    did_us: Floats

    def __add__(self, more: Caused) -> Caused:
        return Caused(
            us=self.us + more.us,
            late_did_us=self.late_did_us + more.late_did_us,
            did_us=self.did_us + more.did_us,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Causes:
    """The causes of one rank's waiting, and of the waiting for it.

    parts: the names of P parts, the last one UNKNOWN. waited_us: float64[S, P], this rank's waiting in each shared
    step, by what other ranks did. caused: by the index of each rank that waited for this one, the waiting that this
    rank's own work caused.
    """

    parts: tuple[str, ...]
    waited_us: Floats
    caused: Mapping[int, Caused]

    def of_step(self, number: int) -> dict[str, float]:
        return {part: us for part, us in zip(self.parts, self.waited_us[number].tolist(), strict=True) if us > 0}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Wait:
    """N collectives of a group in which one rank waited.

    rank, event: the rank's index and the indices of its collectives; last, last_event: int64[N], the rank that entered
    last and the index of its collective; since, last_since: int64[N], the earlier collective that both left together,
    else the step that both were in (numbered after all collectives), NONE if neither is known; us: float64[N], the
    exposed part of the waiting; late_us: float64[N], how much later the last rank entered.
    """

    rank: int
    event: Ints
    last: Ints
    last_event: Ints
    since: Ints
    last_since: Ints
    us: Floats
    late_us: Floats


def causes(
    ranks: Sequence[Digest], shared: Sequence[Sequence[int]], matches: Sequence[Match], clocks: Sequence[Clock]
) -> list[Causes]:
    """Returns, for each rank, why it waited and why others waited for it.

    Leaves out the sends and receives of pipelines, which are bubble.
    """
    parts = (*dict.fromkeys(part for rank in ranks for part in rank.progress.parts), UNKNOWN)
    waits = list(_waits(ranks, shared, matches, clocks))
    progress = [_Progress(rank, steps, parts) for rank, steps in zip(ranks, shared, strict=True)]
    whys = [np.zeros((len(wait.us), len(parts))) for wait in waits]
    for _ in range(MAX_CHAIN):
        for rank in progress:
            rank.forget()
        for wait, why in zip(waits, whys, strict=True):
            progress[wait.rank].add_wait(wait, why)
        whys = [_why(wait, *_done(wait, progress, passed_on=True)) for wait in waits]
    return [
        Causes(parts=parts, waited_us=waited, caused=caused)
        for waited, caused in zip(
            _waited(ranks, shared, waits, whys, len(parts)), _caused(ranks, shared, waits, progress), strict=True
        )
    ]


class _Progress:
    """The work of one rank before each of its collectives, by part.

    Time spent waiting does not count as communication: it is replaced by its cause if `passed_on`, else left out.
    """

    def __init__(self, rank: Digest, steps: Sequence[int], parts: Sequence[str]) -> None:
        column = [parts.index(part) for part in rank.progress.parts]
        start_us = rank.progress.before_start_us
        end_us = np.concatenate([rank.progress.before_end_us, rank.progress.before_step_us[list(steps)]])
        self._before_start, self._before_end = (np.zeros((len(us), len(parts))) for us in (start_us, end_us))
        self._before_start[:, column], self._before_end[:, column] = start_us, end_us
        self._start_us, self._end_us = rank.collectives.start_us, rank.collectives.end_us
        self._left_us = np.concatenate([self._end_us, [rank.span_of(step)[0] for step in steps]])
        kinds = [parts.index(call.kind) if call.kind in parts else NONE for call in rank.collectives.calls]
        self._column = np.array(kinds, dtype=np.int64)[rank.collectives.call]
        self.parts = len(parts)
        self.forget()

    def forget(self) -> None:
        nothing = np.zeros((0, self.parts))
        self._waits: list[tuple[Ints, Floats, Floats]] = [(np.empty(0, dtype=np.int64), nothing, nothing)]
        self._ends: Floats | None = None

    def add_wait(self, wait: _Wait, why: Floats) -> None:
        taken = np.zeros_like(why)
        taken[np.arange(len(why)), self._column[wait.event]] = -wait.us
        self._waits.append((wait.event, taken, taken + why))

    def between(self, since: Ints, event: Ints, *, passed_on: bool) -> Floats:
        """Returns float64[N, P]: the work between the end of the collectives `since` (the start of a step, if numbered
        after them) and the start of the collectives `event`."""
        moved = self._moved(self._start_us[event], passed_on) - self._moved(self._left_us[since], passed_on)
        done: Floats = self._before_start[event] - self._before_end[since] + moved
        return done

    def _moved(self, time: Floats, passed_on: bool) -> Floats:
        """Returns float64[N, P]: the correction of the work done before each moment for time spent waiting."""
        if self._ends is None:
            ends = self._end_us[np.concatenate([event for event, *_ in self._waits])]
            order = np.argsort(ends, kind="stable")
            self._ends = ends[order]
            self._taken, self._moves = (
                np.concatenate([np.zeros((1, self.parts)), np.cumsum(np.concatenate(of)[order], axis=0)])
                for of in ([taken for _, taken, _ in self._waits], [moved for *_, moved in self._waits])
            )
        total = self._moves if passed_on else self._taken
        return total[np.searchsorted(self._ends, time, side="right")]


def _done(wait: _Wait, progress: Sequence[_Progress], *, passed_on: bool) -> tuple[Floats, Floats]:
    """Returns float64[N, P] twice: the work of the last rank and of the waiting rank since they left a collective
    together; 0 if that is not known."""
    own = np.zeros((len(wait.us), progress[wait.rank].parts))
    last = np.zeros_like(own)
    known = wait.since != NONE
    own[known] = progress[wait.rank].between(wait.since[known], wait.event[known], passed_on=passed_on)
    for rank in np.unique(wait.last[known]).tolist():
        of = known & (wait.last == rank)
        last[of] = progress[rank].between(wait.last_since[of], wait.last_event[of], passed_on=passed_on)
    return last, own


def _why(wait: _Wait, last: Floats, own: Floats) -> Floats:
    """Returns float64[N, P]: the waiting attributed to the parts that took the last rank longer; the remainder is
    UNKNOWN."""
    more = np.maximum(last - own, 0.0)
    more[:, -1] = 0.0
    total, late = more.sum(axis=1), np.maximum(wait.late_us, TINY_US)
    share = more / np.maximum(total, late)[:, None]
    share[total < MIN_EXPLAINED * late] = 0.0
    why: Floats = share * wait.us[:, None]
    why[:, -1] = wait.us - why.sum(axis=1)
    return why


def _waits(
    ranks: Sequence[Digest], shared: Sequence[Sequence[int]], matches: Sequence[Match], clocks: Sequence[Clock]
) -> Iterator[_Wait]:
    times = [aligned(ranks, group, clocks) for group in matches]
    left = {frozenset(group.rank.tolist()): group.rank for group in matches}
    together = {members: _left_together(ranks, matches, times, rank) for members, rank in left.items()}
    for group, (start, end) in zip(matches, times, strict=True):
        if group.call.kind == PIPELINE:
            continue
        ends, events = together[frozenset(group.rank.tolist())]
        everyone = ~np.isnan(start).any(axis=0)
        first, last = np.fmin.reduce(start, axis=0), np.argmax(np.where(np.isnan(start), -np.inf, start), axis=0)
        before = np.where(everyone, np.searchsorted(ends, first, side="right") - 1, NONE)
        at = np.arange(start.shape[1])
        since = _steps(ranks, shared, group)
        since[:, before != NONE] = events[:, before[before != NONE]]
        for k, place in enumerate(group.rank.tolist()):
            late = start[last, at] - start[k]
            chosen = np.flatnonzero((late > 0) & ~np.isnan(start[k]))
            event = group.event[k, chosen]
            yield _Wait(
                rank=place,
                event=event,
                last=group.rank[last[chosen]],
                last_event=group.event[last[chosen], chosen],
                since=since[k, chosen],
                last_since=since[last[chosen], chosen],
                us=_exposed(ranks[place], event, np.minimum(late, end[k] - start[k])[chosen]),
                late_us=late[chosen],
            )


def _steps(ranks: Sequence[Digest], shared: Sequence[Sequence[int]], group: Match) -> Ints:
    """Returns int64[R, N]: the step in which all ranks of a group were in each collective, NONE if they were in
    different ones. Steps are numbered after a rank's collectives."""
    step = np.full(group.event.shape, NONE, dtype=np.int64)
    for k, place in enumerate(group.rank.tolist()):
        known = group.event[k] != NONE
        start = ranks[place].collectives.start_us[group.event[k, known]]
        step[k, known] = ranks[place].step_of(start, shared[place])
    after = np.array([[len(ranks[place].collectives.start_us)] for place in group.rank.tolist()])
    return np.where((step == step[0]).all(axis=0) & (step[0] != NONE), step + after, NONE)


def _left_together(
    ranks: Sequence[Digest], matches: Sequence[Match], times: Sequence[tuple[Floats, Floats]], members: Ints
) -> tuple[Floats, Ints]:
    """Returns the collectives in which all of these ranks (indices, int64[R]) took part and that they left together:
    their ends on one clock, float64[K], sorted; and their events, int64[R, K]."""
    ends: list[Floats] = [np.empty(0)]
    events: list[Ints] = [np.empty((len(members), 0), dtype=np.int64)]
    for group, (_, end) in zip(matches, times, strict=True):
        if not np.isin(members, group.rank).all():
            continue
        rows = [group.rank.tolist().index(place) for place in members.tolist()]
        own, until = group.event[rows], end[rows]
        alone: Bools = np.stack([ranks[place].progress.alone[own[k]] for k, place in enumerate(members.tolist())])
        kept = (alone & (own != NONE) & ~np.isnan(until)).all(axis=0)
        ends.append(median(until[:, kept].T))
        events.append(own[:, kept])
    end = np.concatenate(ends)
    order = np.argsort(end, kind="stable")
    return end[order], np.concatenate(events, axis=1)[:, order]


def _exposed(rank: Digest, event: Ints, waited_us: Floats) -> Floats:
    """Returns float64[N]: the exposed part of the first `waited_us` of the rank's collectives."""
    found = rank.collectives
    start = found.start_us[event]
    kind = np.array([KINDS.index(call.kind) for call in found.calls], dtype=np.int64)[found.call[event]]
    us = np.zeros(len(event))
    for code in np.unique(kind).tolist():
        of = kind == code
        us[of] = rank.exposed_by_kind.get(KINDS[code], EMPTY).within(start[of], (start + waited_us)[of])
    return us


def _counted(ranks: Sequence[Digest], shared: Sequence[Sequence[int]], wait: _Wait) -> tuple[Ints, Floats]:
    """Returns int64[N]: the shared step of each wait, NONE outside of all; float64[N]: how often it counts."""
    rank, start = ranks[wait.rank], ranks[wait.rank].collectives.start_us[wait.event]
    step, weights = rank.step_of(start, shared[wait.rank]), rank.repeats.weights(start)
    return step, np.where(step == NONE, 0.0, 1.0 if weights is None else weights)


def _waited(
    ranks: Sequence[Digest],
    shared: Sequence[Sequence[int]],
    waits: Sequence[_Wait],
    whys: Sequence[Floats],
    parts: int,
) -> list[Floats]:
    waited = [np.zeros((len(steps), parts)) for steps in shared]
    for wait, why in zip(waits, whys, strict=True):
        step, times = _counted(ranks, shared, wait)
        np.add.at(waited[wait.rank], np.maximum(step, 0), why * times[:, None])
    return waited


def _caused(
    ranks: Sequence[Digest], shared: Sequence[Sequence[int]], waits: Sequence[_Wait], progress: Sequence[_Progress]
) -> list[dict[int, Caused]]:
    caused: list[dict[int, Caused]] = [{} for _ in ranks]
    for wait in waits:
        last, own = _done(wait, progress, passed_on=False)
        _, times = _counted(ranks, shared, wait)
        why = _why(wait, last, own)
        for rank in np.unique(wait.last[times > 0]).tolist():
            of = wait.last == rank
            us, late_did, did = ((times[of] @ each[of]) for each in (why, last, own))
            one = Caused(us=us, late_did_us=late_did, did_us=did)
            before = caused[rank].get(wait.rank)
            caused[rank][wait.rank] = one if before is None else before + one
    return caused


def scaled_down(us: Mapping[str, float], whole_us: float) -> dict[str, float]:
    """Scales parts down to sum up to `whole_us`, if overlapping collectives were counted twice."""
    total = sum(us.values())
    return {part: value * min(1.0, whole_us / total) for part, value in us.items()} if total > 0 else {}
