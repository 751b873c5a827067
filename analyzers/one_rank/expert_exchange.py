"""Separates dispatch from combine by the experts' grouped GEMMs, which are launched between the two.

A communication is labelled only if, on its stream and thread, one is directly before and one directly after the same
run of grouped GEMMs. A dense GEMM or attention in between (the router, the next layer) separates them. All other
communication stays unlabelled; it is never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.intervals import Bools, Floats
from analyzers.kernel_classes import COMPUTE_CLASSES, KINDS
from analyzers.nesting import NONE
from analyzers.timeline import Ints

GROUPED = COMPUTE_CLASSES.index("grouped_gemm")
SEPARATING = tuple(COMPUTE_CLASSES.index(name) for name in ("attention", "gemm", "convolution"))
DISPATCH, COMBINE = KINDS.index("ep_dispatch"), KINDS.index("ep_combine")


@dataclass(frozen=True, kw_only=True, eq=False)
class Launched:
    """The launches of N kernels. lane: int64[N], the host thread, -1 if unknown; start_us: float64[N]."""

    lane: Ints
    start_us: Floats

    def take(self, chosen: Bools) -> Launched:
        return Launched(lane=self.lane[chosen], start_us=self.start_us[chosen])


def exchanges(launched: Launched, stream: Ints, computing: Launched, label: Ints) -> Ints:
    """Returns int64[N]: dispatch, combine or NONE for each of N communications.

    stream: int64[N], the stream that each runs on; computing, label (int64[M]): the kernels that compute, with their
    classes.
    """
    found = np.full(len(stream), NONE, dtype=np.int64)
    grouped = label == GROUPED
    if not grouped.any() or not len(stream):
        return found
    marks = grouped | np.isin(label, SEPARATING)
    marked = computing.take(marks)
    for lane in np.unique(launched.lane[launched.lane >= 0]).tolist():
        here = marked.lane == lane
        for one in np.unique(stream[launched.lane == lane]).tolist():
            mine = np.flatnonzero((launched.lane == lane) & (stream == one))
            found[mine] = _around(launched.start_us[mine], marked.start_us[here], grouped[marks][here])
    return found


def _around(exchanged_us: Floats, marked_us: Floats, is_grouped: Bools) -> Ints:
    """Labels the communications of one stream and thread that are directly before and after the same run of grouped
    GEMMs."""
    order = np.lexsort((is_grouped, marked_us))
    marked_us, is_grouped = marked_us[order], np.append(is_grouped[order], False)
    following = np.searchsorted(marked_us, exchanged_us)  # the mark after each communication; beyond the last: false
    before = is_grouped[following]
    after = is_grouped[following - 1] & (following > 0)
    # a run of grouped GEMMs ends at any other mark and at any of these communications
    ends = ~is_grouped
    ends[following] = True
    run = np.cumsum(ends)
    first, second = run[following], run[following - 1]
    paired = np.intersect1d(first[before & ~after], second[after & ~before])
    found = np.full(len(exchanged_us), NONE, dtype=np.int64)
    found[before & ~after & np.isin(first, paired)] = DISPATCH
    found[after & ~before & np.isin(second, paired)] = COMBINE
    return found
