"""Computes how much shorter steps would be without some of their work, if the host stays as it is.

Time removed from the device is gained only as far as the next work has been launched; beyond that, the device waits for
the host. So the device is replayed as one queue: an event starts when it has been launched and the previous event is
over, and the host launches earlier by the time that it waits less in synchronising calls. Idle time caused by the host
is recomputed; all other idle time is kept.

Parts of the trace that repeat are replayed as often as they count, one pass after the other. In a pass the host takes
as long as the device if it waits in it, and as long as its launches take if it runs ahead.
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
# maximum number of replayed points in all passes; passes beyond it are extrapolated by the gain of one more
MAX_POINTS = 100_000
NONE = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Passes:
    """The order in which P points are replayed if W windows of them repeat.

    at: int64[Q], the point; again: int64[Q], the window of which another pass starts at this point, else NONE.
    """

    at: Ints
    again: Ints

    def in_replay_order(self, column: Floats, a_pass: Floats) -> Floats:
        """Returns a column float64[P] in the order of the replay, float64[Q]; a_pass: float64[W], by how much its
        values grow with each pass."""
        result: Floats = column[self.at] + np.cumsum(np.append(a_pass, 0.0)[self.again])
        return result


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """One rank's device and host, ready to be replayed without some of their time.

    start_us, launch_us, ready_us: float64[N], of device events with a launch of their own, in the order of launches:
    when the device reached the event, when its launch started, and when the launch allowed it to start. wait_start_us,
    wait_end_us: the intervals in which the host was blocked until the device had reached that point; never merged, as a
    launch may start when a wait ends. late: idle time that the host caused. windows: the steps. extra_pass: the one of
    `repeats` that is run one extra pass, NONE for none.
    """

    start_us: Floats
    launch_us: Floats
    ready_us: Floats
    wait_start_us: Floats
    wait_end_us: Floats
    late: Intervals
    windows: Sequence[Step]
    repeats: Repeats = ONCE
    extra_pass: int = NONE

    def saved_us(self, device: Intervals, host: Intervals = EMPTY) -> list[float]:
        """Returns by how many µs each window would be shorter without the work in `device` and in `host`, two sets of
        time."""
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
        """Returns (number of passes left, a Replay with one pass more) for each of `repeats` that is not replayed in
        full. The number left is a fraction of a pass, or the passes beyond MAX_POINTS."""
        left = self.repeats.times - self._number_of_passes
        return [(times, replace(self, extra_pass=w)) for w, times in enumerate(left.tolist()) if times > 0]

    @cached_property
    def _marks(self) -> Floats:
        edges = [edge for w in self.windows for edge in (w.start_us, w.end_us)]
        return np.unique([*edges, *self.repeats.start_us.tolist(), *self.repeats.end_us.tolist()])

    @cached_property
    def _points(self) -> tuple[Floats, Floats, Bools]:
        """Returns float64[P] twice and bool[P]: start and end of the waits and of marks, and whether each is a mark.

        Marks are the edges of windows and of repeated parts; they have no length. The points are sorted by end; a mark
        comes after a wait that ends with it.
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
        """Returns int64[W] twice: the index of the first point of each repeated window, and the index after its last
        point."""
        place = np.flatnonzero(self._is_mark)
        first, last = (place[np.searchsorted(self._marks, us)] for us in (self.repeats.start_us, self.repeats.end_us))
        return first + 1, last + 1

    @cached_property
    def _number_of_passes(self) -> Ints:
        """Returns int64[W]: how many times each repeated window is replayed, rounded down to whole passes."""
        first, behind = self._blocks
        most = max(1, MAX_POINTS // max(1, int((behind - first).sum())))
        passes: Ints = np.minimum(self.repeats.times, most).astype(np.int64)
        return passes

    @cached_property
    def _passes(self) -> Passes | None:
        """Returns the order in which the points are replayed; None if each is replayed once, in order."""
        if not self.repeats:
            return None
        at, again, done = list[Ints](), list[Ints](), 0
        passes = self._number_of_passes + (np.arange(len(self._number_of_passes)) == self.extra_pass)
        for w, (first, behind, times) in enumerate(zip(*self._blocks, passes, strict=True)):
            at += [np.arange(done, first), np.tile(np.arange(first, behind), times)]
            begins = np.full(first - done + (behind - first) * times, NONE)
            begins[first - done :: behind - first][1:] = w
            again.append(begins)
            done = behind
        rest = np.arange(done, len(self._is_mark))
        return Passes(at=np.concatenate((*at, rest)), again=np.concatenate((*again, np.full(len(rest), NONE))))

    def _once(self, column: Any) -> Any:
        """Returns a column [P] in the order of the replay, [Q], with the same values in every pass."""
        return column if self._passes is None else column[self._passes.at]

    def _in_passes(self, column: Floats, grows: Callable[[Floats], Floats]) -> Floats:
        """Returns a column float64[P] in the order of the replay, float64[Q].

        Its values grow from pass to pass by `grows` at the end of the repeated window minus `grows` at its start.
        """
        if self._passes is None:
            return column
        return self._passes.in_replay_order(column, grows(self.repeats.end_us) - grows(self.repeats.start_us))

    @cached_property
    def _ahead(self) -> list[tuple[float, float] | None]:
        """Returns, for each of `repeats`, when the host starts and ends launching a pass, if it runs ahead of the
        device. None if it keeps pace: it waits before the pass is over, or the device waits for it."""
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
        """Returns int64[N]: how many of the P points the host had passed when it launched each event.

        If the host runs ahead in a repeated window, events inside count the points before that window at least, and
        later events those up to its end.
        """
        at = self.launch_us + 2 * ROUNDING_US
        for (since, until, _), ahead in zip(self.repeats.windows(), self._ahead, strict=True):
            if ahead is not None:
                started = np.where(self.start_us >= until, until, np.where(self.start_us >= since, since, -np.inf))
                at = np.maximum(at, started + 2 * ROUNDING_US)
        return np.searchsorted(self._passed, at, side="right")

    def _sooner_by_pass(self, host: Intervals) -> Floats:
        """Returns float64[Q]: µs by which the host, since its last wait, is ahead of the recorded pass."""
        if self._passes is None:
            return np.zeros(len(self._is_mark))

        def issued(since: float, until: float) -> float:
            return until - since - float(host.within(np.array(since), np.array(until)))

        each = [
            0.0 if ahead is None else issued(since, until) - issued(*ahead)
            for (since, until, _), ahead in zip(self.repeats.windows(), self._ahead, strict=True)
        ]
        ahead_us = self._passes.in_replay_order(np.zeros(len(self._is_mark)), np.array(each))
        place = np.maximum.accumulate(np.where(self._once(self._is_mark), NONE, np.arange(len(ahead_us))))
        waited = np.concatenate(([NONE], place[:-1]))
        sooner: Floats = ahead_us - np.where(waited == NONE, 0.0, ahead_us[waited])
        return sooner

    @cached_property
    def _passed(self) -> Floats:
        """Returns float64[P], sorted: when the host passed each point."""
        _, end, mark = self._points
        return end + ROUNDING_US * mark

    @cached_property
    def _waiting(self) -> Bools:
        """Returns bool[P]: true at waits, and at marks before which the host has launched nothing since its last wait.

        Such a mark is passed when the host passes it, others when the device does.
        """
        _, _, mark = self._points
        launched = np.bincount(self._segment, minlength=len(mark) + 1)[: len(mark)] > 0
        waiting, now = np.zeros(len(mark), dtype=bool), False
        for i, (is_mark, some) in enumerate(zip(mark.tolist(), launched.tolist(), strict=True)):
            now = not is_mark or (now and not some)
            waiting[i] = now
        return waiting

    @cached_property
    def _overhead(self) -> Floats:
        """Returns float64[Q]: how long each wait lasts after the device is done, until its call returns."""
        begin, end = (self._in_passes(column, _itself) for column in self._points[:2])
        return end - np.maximum(begin - self._sooner_by_pass(EMPTY), self._device_at_points)

    @cached_property
    def _device_at_points(self) -> Floats:
        """Returns float64[Q]: the progress of the device at each point, without idle time caused by the host."""
        held, work = self._device(EMPTY, EMPTY)
        return work + np.maximum.accumulate(held)

    @cached_property
    def _base(self) -> Floats:
        end = self._in_passes(self._points[1], _itself)
        return np.where(self._once(self._waiting), end, self._device_at_points)

    def _work_until(self, time: Floats, without: Intervals) -> Floats:
        return time - self.late.covered_until(time) - without.covered_until(time)

    def _latest(self, device: Intervals, host: Intervals) -> Floats:
        """Returns float64[P]: the largest delay of the device by a launch between the point before and each point.

        The delay by a launch is when its event could start, minus the device's work before it.
        """
        latest = np.full(len(self._points[1]) + 1, -np.inf)
        held = self.ready_us - host.covered_until(self.launch_us) - self._work_until(self.start_us, device)
        np.maximum.at(latest, self._segment, held)
        latest[0] = max(latest[0], 0.0)
        return latest[:-1]

    def _device(self, device: Intervals, host: Intervals) -> tuple[Floats, Floats]:
        """Returns float64[Q] twice: the delay of the device by launches since the point before, and its work until
        each point."""

        def work(time: Floats) -> Floats:
            return self._work_until(time, device)

        def held(time: Floats) -> Floats:
            return time - host.covered_until(time) - work(time)

        return (
            self._in_passes(self._latest(device, host), held) - self._sooner_by_pass(host),
            self._in_passes(work(self._points[1]), work),
        )

    def _run(self, device: Intervals, host: Intervals, overhead: Floats) -> Floats:
        """Returns float64[Q]: when each point is passed in the replay."""

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
        held, sooner = -np.inf, 0.0  # sooner: by how much earlier the host launches
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
    """Returns the time in which the host waits for a kernel without a call, by polling memory that the kernel writes.

    polled: bool[len(events)], kernels that are waited for in this way if their thread launches nothing before they end.
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

    events: all on the device; late: idle time that the host caused; waits: the calls that wait; polled: the time of
    waits without a call.
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
