"""Clocks of ranks, aligned on what they do together: a collective ends at nearly the same moment on all its ranks.

Ranks on other machines, or read from other files, count from other zeros and at slightly other rates. Two ranks'
clocks differ by a constant, or by a line where a drift shows; both are medians, so that some collectives that end
unevenly do not matter. From rank to rank the alignment spreads over the collectives they share, by the edges that
fit best; ranks that share none, directly or through others, stay unaligned.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analyzers.intervals import Floats

DRIFT_MAX = 1e-3  # clocks of computers stay within 1e-4 of each other; a steeper line is no drift
DRIFT_NEEDS = 9  # events: three in each third
DRIFT_SHOWS = 0.5  # the line must leave less than this part of the constant's spread


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A rank's clock in terms of the clock of `root` (a place in the list of ranks): root's time =
    time * (1 + rate) + shift_us, both from the ranks' own origins."""

    root: int
    shift_us: float = 0.0
    rate: float = 0.0

    def common(self, time: Floats) -> Floats:
        return time + (time * self.rate + self.shift_us)


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """R clocks against one reference: reference = time * (1 + rate) + shift_us. shift_us, rate, spread_us: float64[R];
    spread_us is the median distance that is left; residual_us: float64[R, N]. NaN where nothing can be compared."""

    shift_us: Floats
    rate: Floats
    spread_us: Floats
    residual_us: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Moments that two ranks (places in the list of ranks) had together, float64[N], each on its own clock."""

    first: int
    second: int
    first_us: Floats
    second_us: Floats


def median(values: Floats) -> Floats:
    """float64[R]: the lower median of each row of float64[R, N], NaN left out; NaN for a row of nothing else."""
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    ordered = np.sort(values, axis=1)
    known = np.count_nonzero(~np.isnan(ordered), axis=1)
    middle: Floats = np.take_along_axis(ordered, np.maximum(known - 1, 0)[:, None] // 2, axis=1)[:, 0]
    return middle


def fit(own: Floats, reference: Floats) -> Fit:
    """Fit each row of own (float64[R, N]) to reference (float64[N]): moments in order, NaN where one is missing."""
    gap = reference - own
    shift = median(gap)
    residual = gap - shift[:, None]
    spread = median(np.abs(residual))
    if own.shape[1] < DRIFT_NEEDS:
        return Fit(shift_us=shift, rate=np.zeros(len(own)), spread_us=spread, residual_us=residual)
    rate = _slope(np.where(np.isnan(gap), np.nan, own), gap)
    sloped = gap - own * rate[:, None]
    at_zero = median(sloped)
    left = sloped - at_zero[:, None]
    closeness = median(np.abs(left))
    drifts = (closeness < DRIFT_SHOWS * spread) & (np.abs(rate) <= DRIFT_MAX)
    return Fit(
        shift_us=np.where(drifts, at_zero, shift),
        rate=np.where(drifts, rate, 0.0),
        spread_us=np.where(drifts, closeness, spread),
        residual_us=np.where(drifts[:, None], left, residual),
    )


def _slope(time: Floats, gap: Floats) -> Floats:
    """float64[R]: of the line through the medians of the first and the last third (Tukey's resistant line)."""
    third = time.shape[1] // 3
    rise = median(gap[:, -third:]) - median(gap[:, :third])
    run = median(time[:, -third:]) - median(time[:, :third])
    slope: Floats = np.divide(rise, run, out=np.zeros(len(rise)), where=run > 0)
    return slope


def align(count: int, pairs: Iterable[Pair], same: Iterable[Sequence[tuple[int, float]]] = ()) -> list[Clock]:
    """One clock for each of `count` ranks; ranks with one root are aligned with each other.

    same: ranks that have one clock already (devices in one file), with their origins on it.
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
    """b's clock against a's, and the other way round."""
    edges[a].append((spread, b, shift, rate))
    edges[b].append((spread, a, -shift / (1 + rate), 1 / (1 + rate) - 1))


def _spread(root: int, edges: _Edges, clocks: list[Clock | None]) -> None:
    """Set the clocks of all ranks that can be reached from the root, always by the edge that fits best."""
    waiting = [(0.0, root, 0.0, 0.0)]
    while waiting:
        _, rank, shift, rate = heapq.heappop(waiting)
        if clocks[rank] is not None:
            continue
        clocks[rank] = Clock(root=root, shift_us=shift, rate=rate)
        for spread, other, by, faster in edges.get(rank, ()):
            if clocks[other] is None:
                # own -> neighbour's -> root's
                heapq.heappush(waiting, (spread, other, by * (1 + rate) + shift, faster + rate + faster * rate))
