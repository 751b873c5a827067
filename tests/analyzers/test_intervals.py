"""Sets of time: the algebra everything else is built from."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analyzers.intervals import EMPTY, Intervals, intersect, merge, subtract, union

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=25)


def _drawn(spans: list[tuple[int, int]]) -> Intervals:
    start = np.array([float(s) for s, _ in spans])
    return union(start, start + np.array([float(d) for _, d in spans]))


def _ticks(intervals: Intervals) -> set[int]:
    return {t for s, e in zip(intervals.start, intervals.end, strict=True) for t in range(int(s), int(e))}


@given(SPANS)
def test_a_union_covers_each_moment_once(spans: list[tuple[int, int]]) -> None:
    found = _drawn(spans)
    assert _ticks(found) == {t for s, d in spans for t in range(s, s + d)}
    assert found.total_us == len(_ticks(found))
    assert np.all(found.start[1:] > found.end[:-1])


@given(SPANS, SPANS)
def test_what_is_in_both_and_what_is_in_one_only_make_the_whole(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    one, other = _drawn(a), _drawn(b)
    assert _ticks(intersect(one, other)) == _ticks(one) & _ticks(other)
    assert _ticks(subtract(one, other)) == _ticks(one) - _ticks(other)
    assert _ticks(merge((one, other))) == _ticks(one) | _ticks(other)


@given(SPANS, st.integers(0, 80), st.integers(0, 80))
def test_time_in_a_window_is_the_time_of_its_moments(spans: list[tuple[int, int]], a: int, b: int) -> None:
    found = _drawn(spans)
    low, high = min(a, b), max(a, b)
    measured = float(found.within(np.array(float(low)), np.array(float(high))))
    assert measured == len(_ticks(found) & set(range(low, high)))
    assert bool(found.contains(np.array([float(a)]))[0]) == (a in _ticks(found))


def test_nothing_minus_anything_is_nothing() -> None:
    assert subtract(EMPTY, _drawn([(0, 5)])).total_us == 0
    assert intersect(EMPTY, EMPTY).total_us == 0
    assert merge(()).total_us == 0
