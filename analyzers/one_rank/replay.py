"""Computes how much shorter steps would be without some of their work, with an unchanged host.

Time removed from the device is gained only until the next work has been launched; beyond that, hidden communication
turns into waiting for the host. So the device is replayed as one queue: each event starts when it has been launched
and the event before it is over, and the host launches sooner by what it waits less in its synchronising calls. Time
in which the device waited for the host is computed again; all other idle time is kept. Parts of the trace that repeat
are replayed as often as they ran, pass after pass; the host takes as long for a pass as the device if it waits in
it, and as long as its launches take if it runs ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from analyzers.intervals import EMPTY, Bools, Floats, Intervals, merge, union
from analyzers.one_rank.gaps import LAUNCH_LATENCY_US
from analyzers.one_rank.launches import Launches
from analyzers.repeats import ONCE, Repeats
from analyzers.steps import Step
from analyzers.timeline import Ints, Spans

# clocks that count from 1970 in float64 are off by a quarter of a microsecond: a wait that ends a step ends before the
# step's edge, and the next launch comes after it, despite rounding
ROUNDING_US = 0.5
MOST_POINTS = 100_000  # of all passes; each further pass is assumed to gain what one more pass gains
NONE = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Passes:
    """The order in which P points are passed when W stretches of them are repeated.

    at: int64[Q], the point; again: int64[Q], the stretch of which a further pass starts there, else NONE.
    """

    at: Ints
    again: Ints

    def laid_out(self, column: Floats, a_pass: Floats) -> Floats:
        """Returns float64[Q] of float64[P]; a_pass: float64[W], by how much the values grow with each pass."""
        laid_out: Floats = column[self.at] + np.cumsum(np.append(a_pass, 0.0)[self.again])
        return laid_out


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """One rank's device and host, ready to be replayed without some of their time.

    start_us, launch_us, ready_us: float64[N], of device events with a launch of their own, in the order of launches:
    when the device reached each, when its launch started, and when that allowed it to start. wait_start_us,
    wait_end_us: when the host was blocked until the device had reached that point; never merged, as a launch may
    start when a wait ends. late: idle time the host caused. windows: the steps. once_more: which of `repeats` is run
    one extra pass, NONE for none.
    """

    start_us: Floats
    launch_us: Floats
    ready_us: Floats
    wait_start_us: Floats
    wait_end_us: Floats
    late: Intervals
    windows: Sequence[Step]
    repeats: Repeats = ONCE
    once_more: int = NONE

    def saved_us(self, device: Intervals, host: Intervals = EMPTY) -> list[float]:
        """Returns by how much each window is shorter without `device` of the device's time and `host` of the host's."""
        saved = found = self._saved_us(device, host)
        for left, a_pass_more in self._left:
            more = a_pass_more._saved_us(device, host)
            found = [us + left * (b - a) for us, a, b in zip(found, saved, more, strict=True)]
        return found

    def _saved_us(self, device: Intervals, host: Intervals) -> list[float]:
        after = self._run(device, host, self._overhead)
        gain = (self._base - after)[self._once(self._is_mark)]
        gained = dict(zip(self._once(self._points[1])[self._once(self._is_mark)].tolist(), gain.tolist(), strict=True))
        return [gained[w.end_us] - gained[w.start_us] for w in self.windows]

    @cached_property
    def _left(self) -> list[tuple[float, Replay]]:
        """Returns, for each of `repeats` that is not run in full, the number of passes left and a Replay with one more
        of them.

        A fraction of a pass is left, or the passes beyond MOST_POINTS.
        """
        left = self.repeats.times - self._number_of_passes
        return [(us, replace(self, once_more=w)) for w, us in enumerate(left.tolist()) if us > 0]

    @cached_property
    def _marks(self) -> Floats:
        edges = [edge for w in self.windows for edge in (w.start_us, w.end_us)]
        return np.unique([*edges, *self.repeats.start_us.tolist(), *self.repeats.end_us.tolist()])

    @cached_property
    def _points(self) -> tuple[Floats, Floats, Bools]:
        """Returns float64[P] twice, bool[P]: start and end of the waits and of marks, which are waits of no length.

        Marks are the edges of windows and of what repeats. Sorted by end, a mark after the wait that ends there.
        """
        begin = np.concatenate((self.wait_start_us, self._marks))
        end = np.concatenate((self.wait_end_us, self._marks))
        mark = np.arange(len(end)) >= len(end) - len(self._marks)
        order = np.lexsort((-begin, end + ROUNDING_US * mark))
        return begin[order], end[order], mark[order]

    @property
    def _is_mark(self) -> Bools:
        return self._points[2]

    @cached_property
    def _blocks(self) -> tuple[Ints, Ints]:
        """Returns int64[W] twice: the first point of what repeats, and the one after its last, which is its end."""
        place = np.flatnonzero(self._is_mark)
        first, last = (place[np.searchsorted(self._marks, us)] for us in (self.repeats.start_us, self.repeats.end_us))
        return first + 1, last + 1

    @cached_property
    def _number_of_passes(self) -> Ints:
        """Returns int64[W]: the number of passes of each repeated stretch; whole passes only."""
        first, behind = self._blocks
        most = max(1, MOST_POINTS // max(1, int((behind - first).sum())))
        passes: Ints = np.minimum(self.repeats.times, most).astype(np.int64)
        return passes

    @cached_property
    def _passes(self) -> Passes | None:
        """Returns the order of points; None if every point is passed once, in order."""
        if not self.repeats:
            return None
        at, again, done = [], [], 0
        passes = self._number_of_passes + (np.arange(len(self._number_of_passes)) == self.once_more)
        for w, (first, behind, times) in enumerate(zip(*self._blocks, passes, strict=True)):
            at += [np.arange(done, first), np.tile(np.arange(first, behind), times)]
            begins = np.full(first - done + (behind - first) * times, NONE)
            begins[first - done :: behind - first][1:] = w
            again.append(begins)
            done = behind
        rest = np.arange(done, len(self._is_mark))
        return Passes(at=np.concatenate((*at, rest)), again=np.concatenate((*again, np.full(len(rest), NONE))))

    def _once(self, column: Any) -> Any:
        """Returns [Q] of [P]: the same in every pass."""
        return column if self._passes is None else column[self._passes.at]

    def _in_passes(self, column: Floats, grows: Callable[[Floats], Floats]) -> Floats:
        """Returns float64[Q] of float64[P], growing from pass to pass.

        Each pass adds `grows` at the end of what repeats less `grows` at its start.
        """
        if self._passes is None:
            return column
        return self._passes.laid_out(column, grows(self.repeats.end_us) - grows(self.repeats.start_us))

    @cached_property
    def _ahead(self) -> list[tuple[float, float] | None]:
        """Returns, for each of `repeats`, from when to when a host that runs ahead launches a pass.

        None if the host keeps pace with the device: it waits before the pass is over, or the device waits for it.
        """
        found: list[tuple[float, float] | None] = []
        for since, until, _ in self.repeats.windows():
            inside = np.flatnonzero((self.start_us >= since) & (self.start_us < until))
            first = inside[0] if len(inside) else 0
            behind = first + len(inside)  # events are in the order of launches
            begins, ends = (float(self.launch_us[at]) if at < len(self.launch_us) else until for at in (first, behind))
            waits = (self.wait_end_us > begins) & (self.wait_end_us <= until)
            keeps_pace = bool(waits.any()) or self.late.within(np.array(since), np.array(until)) > ROUNDING_US
            found.append(None if keeps_pace or not len(inside) or ends - begins > until - since else (begins, ends))
        return found

    @cached_property
    def _segment(self) -> Ints:
        """Returns int64[N]: how many points had passed when each event was launched.

        If the host ran ahead, at least those before the repeated stretch that the event is in, or up to the end of
        one before it.
        """
        at = self.launch_us + 2 * ROUNDING_US
        for (since, until, _), ahead in zip(self.repeats.windows(), self._ahead, strict=True):
            if ahead is not None:
                started = np.where(self.start_us >= until, until, np.where(self.start_us >= since, since, -np.inf))
                at = np.maximum(at, started + 2 * ROUNDING_US)
        return np.searchsorted(self._passed, at, side="right")

    def _sooner_by_pass(self, host: Intervals) -> Floats:
        """Returns float64[Q]: how far the host, running ahead, is before the device's passes, until the next wait."""
        if self._passes is None:
            return np.zeros(len(self._is_mark))

        def issued(since: float, until: float) -> float:
            return until - since - float(host.within(np.array(since), np.array(until)))

        each = [
            0.0 if ahead is None else issued(since, until) - issued(*ahead)
            for (since, until, _), ahead in zip(self.repeats.windows(), self._ahead, strict=True)
        ]
        ahead_us = self._passes.laid_out(np.zeros(len(self._is_mark)), np.array(each))
        place = np.maximum.accumulate(np.where(self._once(self._is_mark), NONE, np.arange(len(ahead_us))))
        waited = np.concatenate(([NONE], place[:-1]))
        sooner: Floats = ahead_us - np.where(waited == NONE, 0.0, ahead_us[waited])
        return sooner

    @cached_property
    def _passed(self) -> Floats:
        """Returns float64[P], sorted: when the host has passed each point."""
        _, end, mark = self._points
        return end + ROUNDING_US * mark

    @cached_property
    def _waiting(self) -> Bools:
        """Returns bool[P]: the host had launched nothing since its last wait at this mark: the mark is done when the
        host is."""
        _, _, mark = self._points
        launched = np.bincount(self._segment, minlength=len(mark) + 1)[: len(mark)] > 0
        waiting, now = np.zeros(len(mark), dtype=bool), False
        for i, (is_mark, some) in enumerate(zip(mark.tolist(), launched.tolist(), strict=True)):
            now = not is_mark or (now and not some)
            waiting[i] = now
        return waiting

    @cached_property
    def _overhead(self) -> Floats:
        """Returns float64[Q]: what each wait takes after the device is done: its own return."""
        begin, end = (self._in_passes(column, _itself) for column in self._points[:2])
        return end - np.maximum(begin - self._sooner_by_pass(EMPTY), self._device_at_points)

    @cached_property
    def _device_at_points(self) -> Floats:
        """Returns float64[Q]: the device's progress at each point, without idle time for the host."""
        held, work = self._device(EMPTY, EMPTY)
        return work + np.maximum.accumulate(held)

    @cached_property
    def _base(self) -> Floats:
        end = self._in_passes(self._points[1], _itself)
        return np.where(self._once(self._waiting), end, self._device_at_points)

    def _work_until(self, time: Floats, without: Intervals) -> Floats:
        return time - self.late.covered_until(time) - without.covered_until(time)

    def _latest(self, device: Intervals, host: Intervals) -> Floats:
        """Returns float64[P]: up to each point, the launch that delayed the device most.

        That is when its event could start, less the work before it.
        """
        latest = np.full(len(self._points[1]) + 1, -np.inf)
        held = self.ready_us - host.covered_until(self.launch_us) - self._work_until(self.start_us, device)
        np.maximum.at(latest, self._segment, held)
        latest[0] = max(latest[0], 0.0)
        return latest[:-1]

    def _device(self, device: Intervals, host: Intervals) -> tuple[Floats, Floats]:
        """Returns float64[Q] twice: the device's delay before each point, and its work until then."""

        def work(time: Floats) -> Floats:
            return self._work_until(time, device)

        def held(time: Floats) -> Floats:
            return time - host.covered_until(time) - work(time)

        return (
            self._in_passes(self._latest(device, host), held) - self._sooner_by_pass(host),
            self._in_passes(work(self._points[1]), work),
        )

    def _run(self, device: Intervals, host: Intervals, overhead: Floats) -> Floats:
        """Returns float64[Q]: when each point is passed."""

        def issued(time: Floats) -> Floats:
            return time - host.covered_until(time)

        begin, end, mark = self._points
        columns = (
            *self._device(device, host),
            self._in_passes(issued(begin), issued) - self._sooner_by_pass(host),
            self._in_passes(issued(end), issued),
            overhead,
            self._once(mark),
            self._once(self._waiting),
        )
        passed = np.empty(len(overhead))
        held, sooner = -np.inf, 0.0  # sooner: by how much the host launches
        for i, (latest, work, arrives, leaves, returns, is_mark, waiting) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            held = max(held, latest - sooner)
            if not is_mark and leaves > arrives:  # a wait of no length delays nothing
                sooner = leaves - max(arrives - sooner, work + held) - min(returns, leaves - arrives)
            passed[i] = leaves - sooner if waiting else work + held
        return passed


def _itself(time: Floats) -> Floats:
    return time


def polls(events: Spans, launch: Launches, polled: Bools) -> Intervals:
    """Returns the time in which the host waits for a kernel without a call: it polls what the kernel writes to its
    memory.

    polled: bool[len(events)], kernels that are waited for so, if their thread launches nothing before they are done.
    """
    lane = [np.sort(launch.start_us[launch.lane == one]) for one in launch.lanes]
    found = [EMPTY]
    for one, launched in zip(launch.lanes.tolist(), lane, strict=True):
        mine = polled & (launch.lane == one)
        begin, end = launch.end_us[mine], events.end_us[mine]
        alone = np.searchsorted(launched, begin) == np.searchsorted(launched, end)
        found.append(union(begin[alone], end[alone]))
    return merge(found)


def replay(
    events: Spans,
    launch: Launches,
    *,
    late: Intervals,
    waits: Spans,
    polled: Intervals,
    windows: Sequence[Step],
    repeats: Repeats = ONCE,
) -> Replay:
    """Builds the replay of a rank.

    events: all on the device; late: idle time the host caused; waits: calls that wait; polled: waits without a call.
    """
    first = np.flatnonzero(launch.known & (launch.first_us >= events.start_us) & (events.end_us > events.start_us))
    first = first[np.lexsort((events.start_us[first], launch.start_us[first]))]
    # an event that overtakes earlier launched work on another stream does not delay that work
    before = np.maximum.accumulate(np.concatenate(([0.0], events.end_us[first][:-1])))
    start = np.maximum(events.start_us[first], before)
    return Replay(
        start_us=start,
        launch_us=launch.start_us[first],
        ready_us=np.minimum(launch.end_us[first] + LAUNCH_LATENCY_US, start),
        wait_start_us=np.concatenate((waits.start_us, polled.start)),
        wait_end_us=np.concatenate((waits.end_us, polled.end)),
        late=late,
        windows=windows,
        repeats=repeats,
    )
