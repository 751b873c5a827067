"""The kind of a communication: what its name says, else the ranges, process group and operators around it.

The order is fixed: the kernel's own name (kernels.csv), then communication.csv from top to bottom by `where`: the
innermost enclosing range, the process group in NCCL's arguments, the innermost enclosing operator, and last the
collective. What nothing explains is `other`: never a guess.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from functools import cache
from importlib import resources

import numpy as np

from analyzers import kernels
from analyzers.intervals import Floats
from analyzers.nesting import NONE, innermost
from analyzers.timeline import Ints, Spans, Timeline, look_up


@cache
def _rows(where: str) -> tuple[tuple[re.Pattern[str], int], ...]:
    text = resources.files("analyzers").joinpath("communication.csv").read_text(encoding="utf-8")
    return tuple(
        (re.compile(row["pattern"]), kernels.KINDS.index(row["kind"]))
        for row in csv.DictReader(text.splitlines())
        if row["where"] == where
    )


@cache
def _kind_in(where: str, name: str) -> int:
    return next((kind for pattern, kind in _rows(where) if pattern.search(name)), NONE)


def is_pipeline_range(name: str) -> bool:
    """Whether a range of this name encloses exchanges with a pipeline peer."""
    return _kind_in("range", name) == kernels.KINDS.index("pp")


def _own_kind(name: str) -> int:
    kind = kernels.kernel(name).kind
    return kernels.KINDS.index(kind) if kind else NONE


def _kinds_of_one_rank(timeline: Timeline) -> list[int]:
    """Kinds whose every process group is a single rank: Megatron's SP functions also gather token counts."""
    sizes: dict[int, int] = {}
    for description, size in timeline.group_sizes.items():
        kind = _kind_in("group", description)
        sizes[kind] = max(size, sizes.get(kind, 0))
    return [kind for kind, size in sizes.items() if size == 1 and kind != NONE]


def kinds(events: Spans, group: Ints, *, launch_lane: Ints, launch_us: Floats, timeline: Timeline) -> Ints:
    """int64[N]: the kind of each communication, an index into KINDS.

    group: int64[N], names of the process groups or -1; launch_lane, launch_us: the host thread and moment each
    was launched, lane -1 where unknown.
    """

    def named(spans: Spans, where: str) -> Ints:
        return spans.code(lambda name: _kind_in(where, name))

    def enclosing(spans: Spans, where: str) -> Ints:
        return innermost(spans, named(spans, where), launch_lane, launch_us)

    def grouped(where: str) -> Ints:
        found = np.full(len(group), NONE, dtype=np.int64)
        given = group >= 0
        found[given] = look_up(events.names, group[given], lambda name: _kind_in(where, name))
        return found

    ranges, ops = timeline.ranges, timeline.ops
    impossible = _kinds_of_one_rank(timeline)
    found = events.code(_own_kind)
    clues: tuple[Callable[[], Ints], ...] = (
        lambda: enclosing(ranges, "range"),
        lambda: grouped("group"),
        lambda: enclosing(ops, "operator"),
        lambda: grouped("collective"),
        lambda: named(events, "collective"),
        lambda: enclosing(ranges, "collective"),
        lambda: enclosing(ops, "collective"),
    )
    for clue in clues:
        if not (found == NONE).any():
            break
        clued = clue()
        found = np.where((found == NONE) & ~np.isin(clued, impossible), clued, found)
    return np.where(found == NONE, kernels.KINDS.index("other"), found)
