"""What a trace says of itself as an excerpt: it holds some of a step's micro batches, and a part of it stands for more.

Keys of the trace's header, all optional: `microbatches` and `microbatches_traced`, how many micro batches a step has
and how many of them the trace holds; `repeated`, windows on the clock of `ts` that stand for `times` of themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np

from analyzers.repeats import ONCE, Repeats

MOST_TIMES = 1e6  # no step has as many micro batches
Count = Annotated[int, msgspec.Meta(ge=1)]
Moment = Annotated[float, msgspec.Meta(gt=-1e16, lt=1e16)]  # as of events: beyond, there are no microseconds


class Window(msgspec.Struct, frozen=True):
    """`times` is a whole number only where what stands for N micro batches holds a divisor of N."""

    start_us: Moment
    end_us: Moment
    times: Annotated[float, msgspec.Meta(ge=1, le=MOST_TIMES)]


KINDS: Mapping[str, Any] = {"microbatches": Count, "microbatches_traced": Count, "repeated": list[Window]}


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """windows: in order and apart; warnings: what of the header is ignored, and why."""

    microbatches: int | None = None
    traced: int | None = None
    windows: Sequence[Window] = ()
    warnings: tuple[str, ...] = ()

    def repeats(self, origin_us: float) -> Repeats:
        """The windows on the clock of a timeline."""
        if not self.windows:
            return ONCE
        start, end, times = np.array([(w.start_us, w.end_us, w.times) for w in self.windows]).T
        return Repeats(start_us=start - origin_us, end_us=end - origin_us, times=times)


def excerpt(header: Mapping[str, bytes]) -> Excerpt:
    """header: the text of those of KINDS that the trace has. What is malformed is ignored, of `repeated` all of it."""
    found: dict[str, Any] = {}
    ignored: list[str] = []
    for key, text in header.items():
        try:
            found[key] = msgspec.json.decode(text, type=KINDS[key])
        except msgspec.DecodeError as error:
            ignored.append(f"{key} is ignored: {error}")
    microbatches, traced = (found.get(key) for key in ("microbatches", "microbatches_traced"))
    if microbatches is not None and traced is not None and traced > microbatches:
        ignored.append(f"microbatches and microbatches_traced are ignored: {traced} of {microbatches} were traced")
        microbatches = traced = None
    windows = sorted(found.get("repeated", ()), key=lambda window: window.start_us)
    wrong = _wrong(windows)
    if wrong:
        ignored.append(f"repeated is ignored: {wrong}")
    return Excerpt(microbatches=microbatches, traced=traced, windows=() if wrong else windows, warnings=tuple(ignored))


def _wrong(windows: Sequence[Window]) -> str:
    """What windows, sorted by their starts, cannot be; empty if nothing is."""
    for window in windows:
        if not window.start_us < window.end_us:
            return f"a window from {window.start_us} to {window.end_us} us does not end after its start"
    for one, other in pairwise(windows):
        if other.start_us < one.end_us:
            return f"the windows from {one.start_us} and from {other.start_us} us overlap"
    return ""
