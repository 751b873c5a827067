"""Growing columns, from which readers build a Timeline without one object per event.

A column grows in place and NumPy views its memory without a copy, so that reading needs no more memory than the
columns. Names and lanes take four bytes: traces of gigabytes have millions of events.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzers.intervals import Floats
from analyzers.timeline import NO_CORRELATION, Spans

INT64_LIMIT = 1 << 63


class Codes(dict[Hashable, int]):
    """Numbers distinct values in the order of their first use, from 0: `codes[value]` returns the value's number, new
    or known."""

    def __missing__(self, value: Hashable) -> int:
        code = self[value] = len(self)
        return code


class Column:
    """Numbers in the order they are read; typecode as in array.array: d, q, i or b."""

    def __init__(self, typecode: str) -> None:
        self._values: array[Any] = array(typecode)

    def __len__(self) -> int:
        return len(self._values)

    def extend(self, values: npt.NDArray[Any]) -> None:
        self._values.frombytes(np.ascontiguousarray(values, dtype=self._values.typecode).data.cast("B"))

    def extend_whole(self, values: Sequence[int | None], *, missing: int) -> None:
        """Adds integers; None, and values that do not fit in 64 bits, become `missing`.

        Takes a list: that is three times as fast as first making an array of it.
        """
        try:
            self._values.fromlist(list(values))
        except (TypeError, OverflowError):
            fits = [value is not None and -INT64_LIMIT <= value < INT64_LIMIT for value in values]
            self._values.extend(value if fit else missing for value, fit in zip(values, fits, strict=True))

    def array(self) -> npt.NDArray[Any]:
        """Returns a view of the column, not a copy: while the view exists, the column cannot grow."""
        return np.frombuffer(self._values, dtype=self._values.typecode)


class SpanColumns:
    """Start, end, name and lane of events in the order they are read; correlation ids too for types of events that have
    them."""

    def __init__(self) -> None:
        self._start, self._end = Column("d"), Column("d")
        self._name, self._lane = Column("i"), Column("i")
        self._correlation = Column("q")

    def __len__(self) -> int:
        return len(self._start)

    def extend(
        self,
        *,
        start_us: Floats,
        end_us: Floats,
        name: list[int],
        lane: list[int],
        correlation: list[int | None] | None,
    ) -> None:
        """Adds N events. correlation is None for types of events that never have one."""
        self._start.extend(start_us)
        self._end.extend(end_us)
        self._name.extend_whole(name, missing=0)
        self._lane.extend_whole(lane, missing=0)
        if correlation is not None:
            self._correlation.extend_whole(correlation, missing=NO_CORRELATION)

    def earliest_us(self) -> float | None:
        return float(self._start.array().min()) if len(self) else None

    def spans(self, *, origin_us: float, names: tuple[str, ...]) -> Spans:
        """Returns the columns as Spans, with times relative to `origin_us`.

        Changes the columns in place: call it once.
        """
        start, end = self._start.array(), self._end.array()
        for column in (start, end):
            column -= origin_us
        none = np.broadcast_to(np.int64(NO_CORRELATION), len(start))  # a broadcast view takes no memory
        return Spans(
            start_us=start,
            end_us=end,
            name=self._name.array(),
            lane=self._lane.array(),
            correlation=self._correlation.array() if len(self._correlation) else none,
            names=names,
        )
