"""Finds the training steps: the windows that are partitioned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from analyzers.intervals import Bools
from analyzers.timeline import Spans, Timeline

# the first pattern with a range decides; nested ranges of one pattern (a step in a step) are all kept
STEP_PATTERNS = (
    re.compile(r"^ProfilerStep#\d+$"),  # torch.profiler's schedule
    re.compile(r"^(train_?)?step$", re.IGNORECASE),  # the training worker; Megatron-LM's `step`
    re.compile(r"^(train_?|training )?(step|iteration|iter)[ _#:]*\d+$", re.IGNORECASE),
)
REPEATS = 3  # least number of ranges of one name that can serve as steps
MIN_FILLED = 0.8  # least share of such ranges in the time from the first one's start to the last one's end
MIN_SPANNED = 0.5  # least share of the trace that they span
_NUMBER = re.compile(r"[ _#:]*\d+$")
# a first step longer than this times the median of later ones is warm-up; steps of one loop differ by a few per cent
WARM_UP = 1.3


@dataclass(frozen=True, kw_only=True)
class Step:
    name: str
    start_us: float
    end_us: float


def steps(timeline: Timeline, marker: str | None = None) -> list[Step]:
    """Returns the steps in order of time; repeated names get a number: `step#0`, `step#1`.

    marker: the name of the ranges, numbered or not, that are the steps; None: the usual ones.
    """
    if marker is not None:
        return _in_order(timeline.ranges.take(named(timeline.ranges, marker)))
    return steps_among(timeline.ranges)


def steps_among(ranges: Spans) -> list[Step]:
    """Returns as steps the ranges that match the first of STEP_PATTERNS that any matches; [] if none marks steps."""
    for pattern in STEP_PATTERNS:
        found = ranges.take(ranges.where(partial(_matches, pattern)))
        if len(found):
            return _in_order(found)
    return []


def repeated(timeline: Timeline, *, since: float, until: float) -> list[Step]:
    """Returns repeating ranges that can serve as steps if nothing marks steps.

    They have one name (apart from numbers at its end) and one thread, do not overlap, are REPEATS or more, and cover
    most of the time from `since` to `until` with little in between. Of several such names, the one with most time is
    chosen.
    """
    ranges = timeline.ranges
    best: tuple[float, Spans] | None = None
    for found in _longest_kinds(ranges, least_us=MIN_FILLED * MIN_SPANNED * (until - since)):
        order = np.argsort(found.start_us, kind="stable")
        start, end = found.start_us[order], found.end_us[order]
        took, whole = float((end - start).sum()), float(end.max() - start.min())
        apart = bool((start[1:] >= end[:-1]).all())
        covered = min(float(end.max()), until) - max(float(start.min()), since)
        if (
            apart
            and took >= MIN_FILLED * whole
            and covered >= MIN_SPANNED * (until - since)
            and (best is None or took > best[0])
        ):
            best = took, found
    return _in_order(best[1]) if best else []


def _longest_kinds(ranges: Spans, *, least_us: float) -> Iterator[Spans]:
    """Yields the ranges of each bare name on each thread, if they are REPEATS or more and take `least_us` in total."""
    if not len(ranges):
        return
    first: dict[str, int] = {}
    code = ranges.code(lambda name: first.setdefault(bare(name), len(first)))
    _, kind, count = np.unique(np.stack([code, ranges.lane]), axis=1, return_inverse=True, return_counts=True)
    took = np.bincount(kind.ravel(), weights=ranges.end_us - ranges.start_us)
    for one in np.flatnonzero((count >= REPEATS) & (took >= least_us)).tolist():
        yield ranges.take(kind.ravel() == one)


def named(ranges: Spans, name: str) -> Bools:
    """Returns bool[N]: the ranges of this name; if there are none, those of this name followed by a number."""
    exact = ranges.where(lambda each: each == name)
    return exact if exact.any() else ranges.where(lambda each: bare(each) == name)


def bare(name: str) -> str:
    """Returns `iteration` for `iteration 7` and for `iteration#7`."""
    return _NUMBER.sub("", name) or name


def _in_order(found: Spans) -> list[Step]:
    order = np.lexsort((found.end_us, found.start_us)).tolist()
    names = [found.names[found.name[i]] for i in order]
    unique = len(set(names)) == len(names) and all("#" in n or n[-1:].isdigit() for n in names)
    return [
        Step(name=name if unique else f"{name}#{k}", start_us=float(found.start_us[i]), end_us=float(found.end_us[i]))
        for k, (i, name) in enumerate(zip(order, names, strict=True))
    ]


def warm_up(duration_us: Sequence[float]) -> int:
    """Returns how many steps at the start are warm-up: one if it is much longer than the later ones, of which at least
    two are needed. Caches fill, kernels are compiled and tuned, the allocator grows: none of this recurs in later
    steps."""
    first, later = duration_us[:1], duration_us[1:]
    return int(len(later) >= 2 and first[0] > WARM_UP * float(np.median(later)))


def is_step(name: str) -> bool:
    return any(pattern.match(name) for pattern in STEP_PATTERNS)


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(name) is not None
