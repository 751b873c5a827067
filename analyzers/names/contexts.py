"""Reclassifies kernels by the place of their launch: a plain GEMM inside the experts is work of the grouped GEMM.

The table is contexts.csv: a kernel of class `class`, launched in a range or operator that `pattern` matches, is of
class `becomes`.
"""

from __future__ import annotations

import re
from functools import cache, partial

import numpy as np

from analyzers.intervals import Floats
from analyzers.kernel_classes import COMPUTE_CLASSES
from analyzers.names import tables
from analyzers.nesting import NONE, innermost
from analyzers.timeline import Ints, Timeline


def in_context(label: Ints, *, launch_lane: Ints, launch_us: Floats, timeline: Timeline) -> Ints:
    """Returns int64[N]: the classes of kernels, changed by the place of their launch.

    label: int64[N], the classes by name, indices into COMPUTE_CLASSES.
    """
    found = label.copy()
    for where, spans in (("range", timeline.ranges), ("operator", timeline.ops)):
        around = innermost(spans, spans.code(partial(_context, where)), launch_lane, launch_us)
        for context in np.unique(around[around != NONE]).tolist():
            for own, becomes in _contexts(where)[context][1]:
                found[(around == context) & (label == own)] = becomes
    return found


def _context(where: str, name: str) -> int:
    return next((k for k, (pattern, _) in enumerate(_contexts(where)) if pattern.search(name)), NONE)


@cache
def _contexts(where: str) -> tuple[tuple[re.Pattern[str], tuple[tuple[int, int], ...]], ...]:
    """Returns the patterns of ranges or of operators; with each, pairs of (class, class inside)."""
    changes: dict[str, list[tuple[int, int]]] = {}
    for row in tables.rows("contexts.csv"):
        if row["where"] == where:
            change = COMPUTE_CLASSES.index(row["class"]), COMPUTE_CLASSES.index(row["becomes"])
            changes.setdefault(row["pattern"], []).append(change)
    return tuple((re.compile(pattern), tuple(pairs)) for pattern, pairs in changes.items())
