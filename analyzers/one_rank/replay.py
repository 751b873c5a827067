"""How much shorter steps would be without some of their work, the host being what it was.

Time taken off the device comes back only as far as the next work had been launched by then; where it had not, hidden
communication turns into waiting for the host. So the device is run again as one queue: each event starts when it has
been launched and what ran before it is over, and the host launches sooner by what it waits less in its
synchronising calls. Time in which the device waited for the host is not kept, it comes out anew; all other idle time
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.intervals import EMPTY, Bools, Floats, Intervals, merge, union
from analyzers.one_rank.gaps import LAUNCH_LATENCY_US
from analyzers.one_rank.launches import Launches
from analyzers.steps import Step
from analyzers.timeline import Ints, Spans

# clocks that count from 1970 in float64 are a quarter of a microsecond out: a wait that ends a step ends before the
# edge of the step, and what is launched next is launched after it, whatever the digits say
ROUNDING_US = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """One rank's device and host, ready to be run without some of their time.

    start_us, launch_us, ready_us: float64[N], of device events with a launch of their own, in the order of launches:
    when the device had come to each, when its launch began, and when that let it begin. wait_start_us, wait_end_us:
    float64[W], where the host was blocked until the device had come so far; never merged, as a launch may begin when a
    wait ends. late: idle time the host caused. windows: the steps.
    """

    start_us: Floats
    launch_us: Floats
    ready_us: Floats
    wait_start_us: Floats
    wait_end_us: Floats
    late: Intervals
    windows: Sequence[Step]

    def saved_us(self, device: Intervals, host: Intervals = EMPTY) -> list[float]:
        """By how much each window is shorter if the device does without `device` and the host without `host`."""
        after = self._run(device, host, self._overhead)
        gained = dict(zip(self._marks.tolist(), (self._base - after)[self._is_mark].tolist(), strict=True))
        return [gained[w.end_us] - gained[w.start_us] for w in self.windows]

    @cached_property
    def _marks(self) -> Floats:
        return np.unique([edge for w in self.windows for edge in (w.start_us, w.end_us)])

    @cached_property
    def _points(self) -> tuple[Floats, Floats, Bools]:
        """float64[P] twice, bool[P]: begin and end of the waits and, as waits of no length, the windows' edges;
        in the order of their ends, an edge after the wait that ends there."""
        begin = np.concatenate((self.wait_start_us, self._marks))
        end = np.concatenate((self.wait_end_us, self._marks))
        mark = np.arange(len(end)) >= len(end) - len(self._marks)
        order = np.lexsort((-begin, end + ROUNDING_US * mark))
        return begin[order], end[order], mark[order]

    @property
    def _is_mark(self) -> Bools:
        return self._points[2]

    @cached_property
    def _segment(self) -> Ints:
        """int64[N]: how many points had passed when each event was launched."""
        return np.searchsorted(self._passed, self.launch_us + 2 * ROUNDING_US, side="right")

    @cached_property
    def _passed(self) -> Floats:
        """float64[P], sorted: when each point is behind the host."""
        _, end, mark = self._points
        return end + ROUNDING_US * mark

    @cached_property
    def _waiting(self) -> Bools:
        """bool[P]: at this edge the host had launched nothing since it waited last: it is done when the host is."""
        _, _, mark = self._points
        launched = np.bincount(self._segment, minlength=len(mark) + 1)[: len(mark)] > 0
        waiting, now = np.zeros(len(mark), dtype=bool), False
        for i, (is_mark, some) in enumerate(zip(mark.tolist(), launched.tolist(), strict=True)):
            now = not is_mark or (now and not some)
            waiting[i] = now
        return waiting

    @cached_property
    def _overhead(self) -> Floats:
        """float64[P]: what each wait takes beyond the device's being done: its own return."""
        begin, end, _ = self._points
        return end - np.maximum(begin, self._device_at_points)

    @cached_property
    def _device_at_points(self) -> Floats:
        """float64[P]: how far the device was at each point, idle time for the host left out."""
        work = self._work_until(self._points[1], EMPTY)
        return work + np.maximum.accumulate(self._latest(EMPTY, EMPTY))[: len(work)]

    @cached_property
    def _base(self) -> Floats:
        return np.where(self._waiting, self._points[1], self._device_at_points)

    def _work_until(self, time: Floats, without: Intervals) -> Floats:
        return time - self.late.covered_until(time) - without.covered_until(time)

    def _latest(self, device: Intervals, host: Intervals) -> Floats:
        """float64[P + 1]: for each stretch between points, the launch that held up the device most: when its event
        could begin, less the work before it."""
        latest = np.full(len(self._points[1]) + 1, -np.inf)
        held = self.ready_us - host.covered_until(self.launch_us) - self._work_until(self.start_us, device)
        np.maximum.at(latest, self._segment, held)
        latest[0] = max(latest[0], 0.0)
        return latest

    def _run(self, device: Intervals, host: Intervals, overhead: Floats) -> Floats:
        """float64[P]: when each point is passed."""
        begin, end, mark = self._points
        passed = np.empty(len(end))
        columns = (
            self._latest(device, host)[:-1],
            self._work_until(end, device),
            begin - host.covered_until(begin),
            end - host.covered_until(end),
            overhead,
            mark,
            self._waiting,
        )
        held, sooner = -np.inf, 0.0  # sooner: by how much the host launches
        for i, (latest, work, arrives, leaves, returns, is_mark, waiting) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            held = max(held, latest - sooner)
            if not is_mark and leaves > arrives:  # a wait that the host does without keeps it from nothing
                sooner = leaves - max(arrives - sooner, work + held) - min(returns, leaves - arrives)
            passed[i] = leaves - sooner if waiting else work + held
        return passed


def polls(events: Spans, launch: Launches, polled: Bools) -> Intervals:
    """Where the host waits for a kernel without a call: it looks for what the kernel writes to its memory.

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
    events: Spans, launch: Launches, *, late: Intervals, waits: Spans, polled: Intervals, windows: Sequence[Step]
) -> Replay:
    """events: all on the device; late: idle time the host caused; waits: calls that wait; polled: waits without one."""
    first = np.flatnonzero(launch.known & (launch.first_us >= events.start_us) & (events.end_us > events.start_us))
    first = first[np.lexsort((events.start_us[first], launch.start_us[first]))]
    # what starts on a stream of its own ahead of work that was launched before it holds up none of that
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
    )
