"""Reclassifies kernels by where they are launched: a plain GEMM inside the experts is the grouped GEMM's work.

The table is contexts.csv: inside such an innermost range or operator, a kernel of one class is of another.
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
    """Returns int64[N]: the classes of kernels given where they were launched; label: int64[N], indices into
    COMPUTE_CLASSES."""
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
    """Returns the patterns of ranges or operators, each with the classes that change inside and their new class."""
    changes: dict[str, list[tuple[int, int]]] = {}
    for row in tables.rows("contexts.csv"):
        if row["where"] == where:
            change = COMPUTE_CLASSES.index(row["class"]), COMPUTE_CLASSES.index(row["becomes"])
            changes.setdefault(row["pattern"], []).append(change)
    return tuple((re.compile(pattern), tuple(pairs)) for pattern, pairs in changes.items())
