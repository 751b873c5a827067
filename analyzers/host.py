"""What the host was doing, as sets of time: used to say why a device was idle.

The rows are looked through in order; a moment belongs to the first that covers it, and what none covers is Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from analyzers import kernels
from analyzers.intervals import Intervals
from analyzers.timeline import Spans, Timeline
from analyzers.work import disjoint

GARBAGE_COLLECTION = "garbage_collection"
ALLOCATOR = "allocator"
SYNCHRONISING = "synchronising_call"
DATA_LOADING = "data_loading"
LAUNCHING = "launching"
OPERATORS = "operators"
PYTHON = "python"
OUTSIDE_CALLS = "outside_calls"  # the same, where operators were not recorded

ALLOCATOR_CALL = re.compile(
    r"^(cuda|hip)(Malloc|Free)(Async|Host|Managed|Pitch)?(_|$)|^cuMem(Alloc|Free|Create|Map|Unmap|Release)"
)
SYNCHRONISING_CALL = re.compile(
    r"^(cuda|hip)(Device|Stream|Event)Synchronize|^cu(Ctx|Stream|Event)Synchronize"
    r"|^(cuda|hip)Memcpy(_|$|2D_|ToSymbol)"
)
LAUNCH_OPERATOR = "c10d::"  # starts a collective and comes back


def _is_operator(name: str) -> bool:
    """Native code, not a Python function or the autograd engine that only encloses some."""
    return kernels.operator(name).known or name.startswith(LAUNCH_OPERATOR)


# what it is, in which events it shows, which names
ROWS: tuple[tuple[str, Callable[[Timeline], Spans], Callable[[str], bool]], ...] = (
    (GARBAGE_COLLECTION, lambda t: t.ranges, lambda name: name == "gc"),
    (ALLOCATOR, lambda t: t.calls, lambda name: ALLOCATOR_CALL.search(name) is not None),
    (SYNCHRONISING, lambda t: t.calls, lambda name: SYNCHRONISING_CALL.search(name) is not None),
    (LAUNCHING, lambda t: t.calls, lambda name: True),
    (DATA_LOADING, lambda t: t.ranges, lambda name: name.startswith("enumerate(DataLoader)")),
    (OPERATORS, lambda t: t.ops, _is_operator),
)


def host_activities(timeline: Timeline) -> dict[str, Intervals]:
    """Disjoint sets of time, keyed by what the host was doing on any thread that issues work."""
    return disjoint((what, _covered(events(timeline), says)) for what, events, says in ROWS)


def calls_named(timeline: Timeline, pattern: re.Pattern[str]) -> Intervals:
    """The time in any runtime call of such a name."""
    return _covered(timeline.calls, lambda name: pattern.search(name) is not None)


def _covered(spans: Spans, says: Callable[[str], bool]) -> Intervals:
    return spans.covered(spans.where(says))
