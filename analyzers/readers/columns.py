"""Columns that grow while a trace is read: how readers build a Timeline without an object an event."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable

import numpy as np

from analyzers.intervals import Floats
from analyzers.timeline import Ints, Spans


class Codes(dict[Hashable, int]):
    """Numbers values as they come: the first is 0. `codes[value]` gives its number, new or old."""

    def __missing__(self, value: Hashable) -> int:
        code = self[value] = len(self)
        return code


class SpanColumns:
    """Start, end, name, lane and correlation of events, in the order they are read."""

    def __init__(self) -> None:
        self._floats = (array("d"), array("d"))
        self._ints = (array("q"), array("q"), array("q"))

    def __len__(self) -> int:
        return len(self._floats[0])

    def extend(
        self,
        *,
        start_us: Iterable[float],
        end_us: Iterable[float],
        name: Iterable[int],
        lane: Iterable[int],
        correlation: Iterable[int],
    ) -> None:
        for column, values in zip(self._floats, (start_us, end_us), strict=True):
            column.extend(values)
        for numbers, codes in zip(self._ints, (name, lane, correlation), strict=True):
            numbers.extend(codes)

    def earliest_us(self) -> float | None:
        return min(self._floats[0], default=None)

    def spans(self, *, origin_us: float, names: tuple[str, ...]) -> Spans:
        start, end = (floats(column) - origin_us for column in self._floats)
        name, lane, correlation = (ints(column) for column in self._ints)
        return Spans(start_us=start, end_us=end, name=name, lane=lane, correlation=correlation, names=names)


def floats(column: array[float]) -> Floats:
    return np.array(column, dtype=np.float64)


def ints(column: array[int]) -> Ints:
    return np.array(column, dtype=np.int64)
