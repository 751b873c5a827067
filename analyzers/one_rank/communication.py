"""Finds the kind of a communication: from its name, else from the ranges, the process group and the operators around
it.

The order is fixed: the kernel's own name (kernels.csv), then the rows of communication.csv by `where`: the innermost
enclosing range, the process group in NCCL's arguments, the innermost enclosing operator, ranges and operators whose
meaning depends on the `collective`, the collective alone. In the experts' group, integer data are token counts, and the
position relative to the grouped GEMMs separates dispatch from combine. A communication that nothing explains is
`other`; it is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from analyzers.intervals import Bools
from analyzers.kernel_classes import KINDS
from analyzers.names import kernels, tables
from analyzers.nesting import NONE, innermost
from analyzers.one_rank.expert_exchange import Launched, exchanges
from analyzers.timeline import Ints, Spans, Timeline, look_up

EXPERT = "expert"  # in communication.csv: an exchange with experts, dispatch or combine
MEANINGS = (*KINDS, EXPERT)
ALL_TO_ALL, NOTIFY, OTHER, PIPELINE = (KINDS.index(name) for name in ("all_to_all", "ep_notify", "other", "pp"))
# kernels that may be an all-to-all or a point-to-point exchange
AMBIGUOUS = re.compile(r"SendRecv|AllToAll|AlltoAll")
WHOLE_NUMBERS = ("Int", "Long")  # counts or positions of tokens, never tokens


@dataclass(frozen=True, kw_only=True)
class _Row:
    where: str
    pattern: re.Pattern[str]
    collective: str  # the row applies to this collective only; empty: to any
    meaning: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Collectives:
    """N communications and their known properties.

    group, message: int64[N] as in DeviceEvents; launched: their launches.
    """

    events: Spans
    group: Ints
    message: Ints
    launched: Launched


@cache
def _rows() -> tuple[_Row, ...]:
    return tuple(
        _Row(
            where=row["where"],
            pattern=re.compile(row["pattern"]),
            collective=row["collective"],
            meaning=MEANINGS.index(row["kind"]),
        )
        for row in tables.rows("communication.csv")
    )


@cache
def _meaning(where: str, collective: str, name: str) -> int:
    """Returns the meaning of a name in this place (`where`), an index into MEANINGS.

    Uses only rows for exactly this `collective`.
    """
    rows = (row for row in _rows() if row.where == where and row.collective == collective)
    return next((row.meaning for row in rows if row.pattern.search(name)), NONE)


def is_pipeline_range(name: str) -> bool:
    """Returns true if a range of this name encloses exchanges with a pipeline peer."""
    return _meaning("range", "", name) == PIPELINE


def _own_kind(name: str) -> int:
    kind = kernels.kernel(name).kind
    return KINDS.index(kind) if kind else NONE


def _kinds_of_one_rank(timeline: Timeline) -> list[int]:
    """Returns the kinds whose process groups all have a single rank.

    For these, Megatron's sequence-parallel functions do not communicate for SP, but gather token counts.
    """
    sizes: dict[int, int] = {}
    for description, size in timeline.group_sizes.items():
        kind = _meaning("group", "", description)
        sizes[kind] = max(size, sizes.get(kind, 0))
    return [kind for kind, size in sizes.items() if size == 1 and kind != NONE]


def kinds(found: Collectives, timeline: Timeline, computing: Launched, label: Ints) -> Ints:
    """Returns int64[N]: the kind of each communication, an index into KINDS.

    computing, label (int64[M]): the kernels that compute, with their classes; empty if ranges give all kinds.
    """
    clues = _Clues(found, timeline)
    impossible = _kinds_of_one_rank(timeline)
    kind = found.events.code(_own_kind)
    for clue in clues.in_order():
        if not (kind == NONE).any():
            break
        clued = clue()
        kind = np.where((kind == NONE) & ~np.isin(clued, impossible), clued, kind)
    return _of_experts(kind, found, timeline, computing, label)


def _of_experts(kind: Ints, found: Collectives, timeline: Timeline, computing: Launched, label: Ints) -> Ints:
    """Decides kinds that may still be dispatch or combine: by dtype, then by the position relative to the grouped
    GEMMs."""
    expert = kind == MEANINGS.index(EXPERT)
    may_exchange = found.events.where(lambda name: AMBIGUOUS.search(name) is not None)
    open_ones = expert | (kind == ALL_TO_ALL) | ((kind == NONE) & may_exchange)
    exchanged = np.full(len(kind), NONE, dtype=np.int64)
    exchanged[open_ones] = exchanges(found.launched.take(open_ones), found.events.lane[open_ones], computing, label)
    if expert.any():
        is_all_to_all = may_exchange | (_Clues(found, timeline).collective() == ALL_TO_ALL)
        kind = np.where(expert, np.where(is_all_to_all, ALL_TO_ALL, OTHER), kind)
        exchanged = np.where(expert & _carries(found, timeline, WHOLE_NUMBERS), NOTIFY, exchanged)
    return np.where(exchanged != NONE, exchanged, np.where(kind == NONE, OTHER, kind))


def _carries(found: Collectives, timeline: Timeline, dtypes: tuple[str, ...]) -> Bools:
    """Returns bool[N]: the communications whose recorded dtype is one of these."""
    says = np.array([message.dtype in dtypes for message in timeline.messages] + [False], dtype=np.bool_)
    carries: Bools = np.take(says, found.message)  # index -1, no message, selects the last element
    return carries


class _Clues:
    """The clues in the surroundings of some communications: for each source int64[N], indices into MEANINGS, or
    NONE."""

    def __init__(self, found: Collectives, timeline: Timeline) -> None:
        self._found = found
        self._timeline = timeline

    def in_order(self) -> Iterator[Callable[[], Ints]]:
        yield partial(self._enclosing, "range")
        yield partial(self._grouped, "group")
        yield partial(self._enclosing, "operator")
        for where, collective in dict.fromkeys((row.where, row.collective) for row in _rows() if row.collective):
            yield partial(self._conditional, where, collective)
        yield self.collective
        yield self._between_peers

    def collective(self) -> Ints:
        """Returns the meaning of the collective itself: from NCCL's arguments, the kernel's name, annotations and
        operators."""
        places = (
            self._grouped("collective"),
            self._found.events.code(partial(_meaning, "collective", "")),
            *(self._around(spans, "collective", "") for spans in (self._timeline.ranges, self._timeline.ops)),
        )
        return _first(places)

    def _between_peers(self) -> Ints:
        """Returns PIPELINE where NCCL's arguments name two peers. (The source of a broadcast is not a peer.)"""
        peers = [message.peers is not None for message in self._timeline.messages]
        # index -1, no message, selects the last element
        has_peers = np.array([*peers, False], dtype=np.bool_)[self._found.message]
        exchanges_some = self._found.events.where(lambda name: AMBIGUOUS.search(name) is not None)
        return np.where(has_peers & exchanges_some, PIPELINE, NONE)

    def _conditional(self, where: str, collective: str) -> Ints:
        is_such = self._is(re.compile(collective))
        return np.where(is_such, self._enclosing(where, collective), NONE) if is_such.any() else is_such - 1

    def _is(self, collective: re.Pattern[str]) -> Bools:
        """Returns bool[N]: true where NCCL's arguments, the kernel's name or an annotation matches the collective."""

        def says(name: str) -> int:
            return 0 if collective.search(name.lower()) else NONE

        annotations = self._timeline.ranges
        value = annotations.code(lambda name: says(name) if name.startswith("nccl:") else NONE)
        places = (
            self._of_group(says),
            self._found.events.code(says),
            innermost(annotations, value, self._found.launched.lane, self._found.launched.start_us),
        )
        is_such: Bools = _first(places) != NONE
        return is_such

    def _enclosing(self, where: str, collective: str = "") -> Ints:
        spans = self._timeline.ranges if where == "range" else self._timeline.ops
        return self._around(spans, where, collective)

    def _around(self, spans: Spans, where: str, collective: str) -> Ints:
        value = spans.code(partial(_meaning, where, collective))
        return innermost(spans, value, self._found.launched.lane, self._found.launched.start_us)

    def _grouped(self, where: str) -> Ints:
        return self._of_group(partial(_meaning, where, ""))

    def _of_group(self, of: Callable[[str], int]) -> Ints:
        clue = np.full(len(self._found.group), NONE, dtype=np.int64)
        given = self._found.group >= 0
        clue[given] = look_up(self._found.events.names, self._found.group[given], of)
        return clue


def _first(places: tuple[Ints, ...]) -> Ints:
    """Returns the first of several columns that is not NONE, event by event."""
    found = places[0]
    for place in places[1:]:
        found = np.where(found == NONE, place, found)
    return found
