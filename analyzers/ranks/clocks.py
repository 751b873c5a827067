"""Aligns the clocks of ranks on their collectives: a collective ends at nearly the same moment on all of its ranks.

Clocks of other machines, or of other files, have other origins and slightly different rates. Two ranks' clocks differ
by a constant, or by a line if a drift shows; collectives that end unevenly, on threads that woke up late, do not affect
the fit. The alignment spreads from rank to rank over shared collectives, along the best fits; ranks that share none,
directly or through others, stay unaligned.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analyzers.intervals import Floats

DRIFT_MAX = 1e-3  # clocks of computers stay within 1e-4 of each other; a steeper line is not a drift
DRIFT_NEEDS = 9  # least number of events for a line: three in each third
DENSE = 0.3  # share of the moments that must agree closely for the clocks' difference to be taken from them
MAX_RESIDUAL_RATIO = 0.5  # largest residual of a line over that of a constant for the line to be used


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A rank's clock relative to that of `root` (an index into the list of ranks): root's time = time * (1 + rate) +
    shift_us, each from the rank's own origin."""

    root: int
    shift_us: float = 0.0
    rate: float = 0.0

    def common(self, time: Floats) -> Floats:
        return time + (time * self.rate + self.shift_us)


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """R clocks fitted to a reference: reference = time * (1 + rate) + shift_us.

    shift_us, rate, spread_us: float64[R]; spread_us is the median absolute residual; residual_us: float64[R, N], NaN
    where there is nothing to compare.
    """

    shift_us: Floats
    rate: Floats
    spread_us: Floats
    residual_us: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """N moments that two ranks (indices into the list of ranks) share, float64[N] each, on their own clocks."""

    first: int
    second: int
    first_us: Floats
    second_us: Floats


def median(values: Floats) -> Floats:
    """Returns float64[R]: the lower median of each row of float64[R, N], without NaN; NaN for a row of only NaN."""
    return _quantile(values, 0.5)


def _quantile(values: Floats, share: float) -> Floats:
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    ordered = np.sort(values, axis=1)
    known = np.count_nonzero(~np.isnan(ordered), axis=1)
    at = (np.maximum(known - 1, 0) * share).astype(np.int64)
    found: Floats = np.take_along_axis(ordered, at[:, None], axis=1)[:, 0]
    return found


def fit(own: Floats, reference: Floats) -> Fit:
    """Fits each row of own (float64[R, N]) to reference (float64[N]); both are moments in order, NaN where missing.

    Fits a constant, the median difference; instead a line, or the most frequent difference, if its residuals are far
    smaller.
    """
    gap = reference - own
    none = np.zeros(len(own))
    fits = [_left_by(gap, own, none, median(gap))]
    if own.shape[1] >= DRIFT_NEEDS:
        rate = _slope(np.where(np.isnan(gap), np.nan, own), gap)
        rate = np.where(np.abs(rate) <= DRIFT_MAX, rate, 0.0)
        fits += [
            _left_by(gap, own, rate, median(gap - own * rate[:, None])),
            _left_by(gap, own, none, _densest(gap)),
        ]
    best = fits[0]
    for other in fits[1:]:
        better = _closeness(other) < MAX_RESIDUAL_RATIO * _closeness(best)
        best = Fit(
            shift_us=np.where(better, other.shift_us, best.shift_us),
            rate=np.where(better, other.rate, best.rate),
            spread_us=np.where(better, other.spread_us, best.spread_us),
            residual_us=np.where(better[:, None], other.residual_us, best.residual_us),
        )
    return best


def _left_by(gap: Floats, own: Floats, rate: Floats, shift: Floats) -> Fit:
    residual = gap - own * rate[:, None] - shift[:, None]
    return Fit(shift_us=shift, rate=rate, spread_us=median(np.abs(residual)), residual_us=residual)


def _closeness(fitted: Fit) -> Floats:
    """Returns float64[R]: the residual below which the fraction DENSE of the moments lies."""
    return _quantile(np.abs(fitted.residual_us), DENSE)


def _densest(values: Floats) -> Floats:
    """Returns float64[R]: the middle of the narrowest range that contains the fraction DENSE of each row."""
    ordered = np.sort(values, axis=1)
    known = np.count_nonzero(~np.isnan(ordered), axis=1)
    found = np.full(len(values), np.nan)
    for count in np.unique(known[known > 0]).tolist():
        rows = ordered[known == count, :count]
        wide = max(1, round(DENSE * count))
        at = np.argmin(rows[:, wide:] - rows[:, :-wide], axis=1) if wide < count else np.zeros(len(rows), dtype=int)
        found[known == count] = np.take_along_axis(rows, (at + wide // 2)[:, None], axis=1)[:, 0]
    return found


def _slope(time: Floats, gap: Floats) -> Floats:
    """Returns float64[R]: the slope through the medians of the first and the last third (Tukey's resistant line)."""
    third = time.shape[1] // 3
    rise = median(gap[:, -third:]) - median(gap[:, :third])
    run = median(time[:, -third:]) - median(time[:, :third])
    slope: Floats = np.divide(rise, run, out=np.zeros(len(rise)), where=run > 0)
    return slope


def align(count: int, pairs: Iterable[Pair], same: Iterable[Sequence[tuple[int, float]]] = ()) -> list[Clock]:
    """Returns one clock for each of `count` ranks; ranks with the same root are aligned with each other.

    same: groups of ranks that share a clock already (devices in one file), each as (index, origin).
    """
    edges = _edges(pairs)
    for together in same:
        for (a, a_us), (b, b_us) in pairwise(together):
            _connect(edges, a, b, -1.0, b_us - a_us, 0.0)
    clocks: list[Clock | None] = [None] * count
    for root in range(count):
        if clocks[root] is None:
            _spread(root, edges, clocks)
    return [clock for clock in clocks if clock is not None]


# a rank's neighbours: (spread_us, the neighbour, shift_us and rate of the neighbour's clock against the rank's)
_Edges = dict[int, list[tuple[float, int, float, float]]]


def _edges(pairs: Iterable[Pair]) -> _Edges:
    shared: dict[tuple[int, int], list[Pair]] = defaultdict(list)
    for pair in pairs:
        shared[pair.first, pair.second].append(pair)
    edges: _Edges = defaultdict(list)
    for (a, b), found in shared.items():
        first = np.concatenate([pair.first_us for pair in found])
        second = np.concatenate([pair.second_us for pair in found])
        order = np.argsort(first)
        fitted = fit(second[order][None, :], first[order])
        shift, rate, spread = (float(x[0]) for x in (fitted.shift_us, fitted.rate, fitted.spread_us))
        _connect(edges, a, b, spread, shift, rate)
    return edges


def _connect(edges: _Edges, a: int, b: int, spread: float, shift: float, rate: float) -> None:
    """Adds b's clock relative to a's, and its inverse."""
    edges[a].append((spread, b, shift, rate))
    edges[b].append((spread, a, -shift / (1 + rate), 1 / (1 + rate) - 1))


def _spread(root: int, edges: _Edges, clocks: list[Clock | None]) -> None:
    """Sets the clocks of all ranks that can be reached from the root, by the best fits first."""
    waiting = [(0.0, root, 0.0, 0.0)]
    while waiting:
        _, rank, shift, rate = heapq.heappop(waiting)
        if clocks[rank] is not None:
            continue
        clocks[rank] = Clock(root=root, shift_us=shift, rate=rate)
        for spread, other, by, faster in edges.get(rank, ()):
            if clocks[other] is None:
                # own clock -> neighbour's -> root's
                heapq.heappush(waiting, (spread, other, by * (1 + rate) + shift, faster + rate + faster * rate))
