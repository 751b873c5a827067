"""Lists the waterfall row by row for terminal and page: levels and gaps from the measured step downwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.gap.document import GapDocument, GapEntry, LevelEntry, Time
from autotune.gap.words import goal
from trainer.estimate.gap.waterfall import Kind, LevelName

SHOWN = 0.002  # fraction of the first level; smaller gaps share one row


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: a level, a gap, or the sum of the small gaps, whose `time` is None.

    `from_ms`, `to_ms`: its start and end; levels start at 0.
    """

    level: LevelEntry | None = None
    gap: GapEntry | None = None
    from_ms: float
    to_ms: float
    time: Time | None


def rows(found: GapDocument) -> Iterator[Row]:
    """Yields each level, and before it the gaps that lead to it, largest first."""
    last = goal(found)
    gaps, at_ms = list(found.gaps), found.levels[0].time.ms
    for level in found.levels:
        above: list[GapEntry] = []
        if level.name == LevelName.OWN and level is not found.levels[0]:
            above = [gap for gap in gaps if gap.kind in (Kind.PART, Kind.PROBED, Kind.UNEXPLAINED)]
        elif last is not None and level.name == last.name:
            above = gaps
        for row in _gaps(above, at_ms, SHOWN * found.levels[0].time.ms):
            yield row
            at_ms = row.to_ms
        gaps = [gap for gap in gaps if gap not in above]
        yield Row(level=level, from_ms=0.0, to_ms=level.time.ms, time=level.time)


def _gaps(gaps: list[GapEntry], at_ms: float, least_ms: float) -> Iterator[Row]:
    small_ms = 0.0
    for gap in sorted(gaps, key=lambda each: -each.time.ms):
        if abs(gap.time.ms) < least_ms:
            small_ms += gap.time.ms
            continue
        yield Row(gap=gap, from_ms=at_ms, to_ms=at_ms - gap.time.ms, time=gap.time)
        at_ms -= gap.time.ms
    if abs(small_ms) > least_ms / 100:
        yield Row(from_ms=at_ms, to_ms=at_ms - small_ms, time=None)
