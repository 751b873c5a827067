"""Projects annotated ranges (NVTX, record_function) onto the device: the work that was launched while each was open.

A range counts the launches of its own thread, and those of threads that work for it: autograd runs backward on its own
threads while the calling thread waits. Such threads never launch at the same moment as the calling one, by which they
differ from independent threads (data loading, another pipeline stage).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from analyzers.diagnosis import RangeTime
from analyzers.intervals import Floats, Intervals, merge, union
from analyzers.one_rank.launches import Launches
from analyzers.repeats import Repeats
from analyzers.timeline import Activity, Spans, Timeline

RANGES_SHOWN = 40
# share of launches that may overlap one of the other thread's: threads that take turns overlap only by clock rounding,
# two that both issue work are in a launch call for a tenth of their time or more
MEETINGS_OF_TURNS = 0.01


def project(timeline: Timeline, launch: Launches) -> list[RangeTime]:
    """Returns the ranges with most host time, by name.

    For nested ranges of one name a moment and a launch count once.
    """
    ranges = timeline.ranges
    launched = _launched_by_lane(timeline, launch)
    names = _longest(ranges, timeline.repeats)
    chosen = ranges.take(np.isin(ranges.name, names))
    threads = {
        lane: [other for other in launched if other == lane or _take_turns(launched.get(lane), launched[other])]
        for lane in np.unique(chosen.lane).tolist()
    }
    return [_projected(chosen.take(chosen.name == name), launched, threads, timeline.repeats) for name in names]


def _longest(ranges: Spans, repeats: Repeats) -> list[int]:
    """Returns the names of ranges with most time on the host, the longest first."""
    used, position = np.unique(ranges.name, return_inverse=True)
    took = np.bincount(position, weights=repeats.lasting(ranges.start_us, ranges.end_us), minlength=len(used))
    by_time = sorted(range(len(used)), key=lambda k: (-took[k], ranges.names[used[k]]))
    return [int(used[k]) for k in by_time[:RANGES_SHOWN]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Launched:
    """The device work that one host thread launched, in the order of launches.

    at_us: float64[K], the launches; before_us: float64[K + 1], the device time of all work launched before each;
    before: float64[K + 1], the number of kernels launched before each, None if that equals the index; issuing: the time
    inside launching calls.
    """

    at_us: Floats
    before_us: Floats
    before: Floats | None
    issuing: Intervals

    def within(self, when: Intervals) -> tuple[float, float]:
        """Returns how many kernels were launched within these intervals, and their device time."""
        first = np.searchsorted(self.at_us, when.start)
        last = np.searchsorted(self.at_us, when.end)
        number = last - first if self.before is None else self.before[last] - self.before[first]
        return float(number.sum()), float((self.before_us[last] - self.before_us[first]).sum())


def _launched_by_lane(timeline: Timeline, launch: Launches) -> dict[int, _Launched]:
    """Returns the work that each thread launched: kernels, and graphs known only by their launch.

    Copies are left out.
    """
    known = np.flatnonzero(launch.known & (timeline.device.activity != Activity.COPY))
    spans, repeats = timeline.device.spans, timeline.repeats
    found = {}
    for lane in np.unique(launch.lane[known]).tolist():
        here = known[launch.lane[known] == lane]
        here = here[np.argsort(launch.start_us[here], kind="stable")]
        took, weights = repeats.lasting(spans.start_us[here], spans.end_us[here]), repeats.weights(spans.start_us[here])
        found[lane] = _Launched(
            at_us=launch.start_us[here],
            before_us=_sums(took),
            before=None if weights is None else _sums(weights),
            issuing=union(launch.start_us[here], launch.end_us[here]),
        )
    return found


def _sums(values: Floats) -> Floats:
    """Returns float64[K + 1]: the sum of all values before each index."""
    return np.concatenate(([0.0], np.cumsum(values)))


def _take_turns(one: _Launched | None, other: _Launched) -> bool:
    """Returns true if two threads never launch at the same moment, or `one` launches nothing and only waits."""
    if one is None:
        return True
    meetings = one.issuing.contains(other.at_us).sum() + other.issuing.contains(one.at_us).sum()
    return bool(meetings <= MEETINGS_OF_TURNS * min(len(one.at_us), len(other.at_us)))


def _projected(
    ranges: Spans, launched: Mapping[int, _Launched], threads: Mapping[int, Iterable[int]], repeats: Repeats
) -> RangeTime:
    """Projects all ranges of one name. threads: by the lane of a range, its own thread and those that work for it."""
    open_on = {lane: ranges.covered(ranges.lane == lane) for lane in np.unique(ranges.lane).tolist()}
    own = [launched[lane].within(when) for lane, when in open_on.items() if lane in launched]
    helped: dict[int, list[Intervals]] = {}
    for lane, when in open_on.items():
        for thread in threads[lane]:
            helped.setdefault(thread, []).append(when)
    every = [launched[thread].within(merge(when)) for thread, when in helped.items()]
    return RangeTime(
        name=ranges.names[ranges.name[0]],
        count=round(repeats.number(ranges.start_us)),
        host_us=sum(repeats.total_us(when) for when in open_on.values()),
        kernels=round(sum(count for count, _ in own)),
        device_us=sum(us for _, us in own),
        kernels_all_threads=round(sum(count for count, _ in every)),
        device_all_threads_us=sum(us for _, us in every),
    )
