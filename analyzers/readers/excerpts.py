"""Reads the header of a trace that is an excerpt: it has only some of a step's micro batches, some of which count
repeatedly.

Keys of the trace's header, all optional: `microbatches` and `microbatches_traced` are the numbers of micro batches in a
step and in the trace; `repeated` lists windows, on the clock of `ts`, that each count `times` times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np

from analyzers.repeats import ONCE, Repeats

MAX_TIMES = 1e6  # larger values are refused: no step has as many micro batches
Count = Annotated[int, msgspec.Meta(ge=1)]
# bounds as for events: a larger double does not resolve microseconds
Moment = Annotated[float, msgspec.Meta(gt=-1e16, lt=1e16)]


class Window(msgspec.Struct, frozen=True):
    """A window of the trace that counts `times` times; not an integer if the traced micro batches do not divide a
    step's."""

    start_us: Moment
    end_us: Moment
    times: Annotated[float, msgspec.Meta(ge=1, le=MAX_TIMES)]


KINDS: Mapping[str, Any] = {"microbatches": Count, "microbatches_traced": Count, "repeated": list[Window]}


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """The excerpt fields of a header. windows: sorted, disjoint; warnings: fields that were ignored, and why."""

    microbatches: int | None = None
    traced: int | None = None
    windows: Sequence[Window] = ()
    warnings: tuple[str, ...] = ()

    def repeats(self, origin_us: float) -> Repeats:
        """Returns the windows on a timeline's clock, which starts at `origin_us`."""
        if not self.windows:
            return ONCE
        start, end, times = np.array([(w.start_us, w.end_us, w.times) for w in self.windows]).T
        return Repeats(start_us=start - origin_us, end_us=end - origin_us, times=times)


def excerpt(header: Mapping[str, bytes]) -> Excerpt:
    """Decodes the excerpt fields of a header.

    Ignores malformed fields, and all of `repeated` if one window is malformed. header: the raw text by key, for the
    keys of KINDS that the trace has.
    """
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
    """Returns the first problem of windows sorted by start; '' if there is none."""
    for window in windows:
        if not window.start_us < window.end_us:
            return f"a window from {window.start_us} to {window.end_us} us does not end after its start"
    for one, other in pairwise(windows):
        if other.start_us < one.end_us:
            return f"the windows from {one.start_us} and from {other.start_us} us overlap"
    return ""
