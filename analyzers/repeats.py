"""Counts repeated parts of a trace several times: a trace may contain a few of a step's micro batches in place of all.

A measure of a window (its length, the part that a set covers, the number of events that start in it) is the sum over
its parts, so a part that repeats N times is added N - 1 more times. All durations and counts are computed here; clock
times, the order of events and single events are not scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from analyzers.intervals import Floats, Intervals

Measure = Callable[[Floats, Floats], Floats]  # an additive measure of stretches of time, given their starts and ends


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeats:
    """W windows, sorted and disjoint; falsy if there are none.

    start_us, end_us: float64[W], on the timeline's clock; times: float64[W], how often each counts, at least 1.
    """

    start_us: Floats
    end_us: Floats
    times: Floats

    def __bool__(self) -> bool:
        return len(self.times) > 0

    def measured(self, measure: Measure, start: Floats, end: Floats) -> Floats:
        """Returns the measure of each stretch, with repeated parts counted as often as they repeat; start, end: float64
        of one shape."""
        found = measure(start, end)
        for since, until, times in self.windows():
            found = found + (times - 1) * measure(np.clip(start, since, until), np.clip(end, since, until))
        return found

    def within(self, part: Intervals, start: Floats, end: Floats) -> Floats:
        """Returns the time of a set inside each stretch, repeats included."""
        return self.measured(part.within, start, end)

    def lasting(self, start: Floats, end: Floats) -> Floats:
        """Returns the duration of each stretch or event, repeats included."""
        return self.measured(_length, start, end)

    def count_within(self, at_us: Floats, start: Floats, end: Floats) -> Floats:
        """Returns how many of the moments (float64[N], sorted) are in each stretch, repeats included."""

        def between(since: Floats, until: Floats) -> Floats:
            number: Floats = np.subtract(np.searchsorted(at_us, until), np.searchsorted(at_us, since), dtype=np.float64)
            return number

        return self.measured(between, start, end)

    def total_us(self, part: Intervals) -> float:
        """Returns the total time of a set, repeats included."""
        return part.total_us + sum((t - 1) * float(part.within(np.array(s), np.array(e))) for s, e, t in self.windows())

    def weights(self, at_us: Floats) -> Floats | None:
        """Returns float64[N]: how often the event that starts at each moment counts; None if all count once."""
        if not self:
            return None
        found = np.ones(len(at_us))
        for since, until, times in self.windows():
            found[(at_us >= since) & (at_us < until)] = times
        return found

    def number(self, at_us: Floats) -> float:
        """Returns the number of events that start at these moments, repeats included."""
        weights = self.weights(at_us)
        return float(len(at_us)) if weights is None else float(weights.sum())

    def windows(self) -> Iterator[tuple[float, float, float]]:
        """Yields start, end and number of repetitions of each repeated window."""
        yield from zip(self.start_us.tolist(), self.end_us.tolist(), self.times.tolist(), strict=True)


ONCE = Repeats(start_us=np.empty(0), end_us=np.empty(0), times=np.empty(0))


def _length(start: Floats, end: Floats) -> Floats:
    return end - start
