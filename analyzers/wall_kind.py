"""The presentation of a wall: the words, colour and position that its file gives for every page and table."""

from __future__ import annotations

from dataclasses import dataclass

from analyzers.diagnosis import Wall


@dataclass(frozen=True, kw_only=True)
class WallKind:
    """The presentation of one wall. `order` is its position among the walls, the lowest first."""

    wall: Wall
    order: int
    loses: str  # a clause that "for 12 % of the step" follows
    column: str  # the head of a table's column with its share of a step
    style: str  # rich style of its segments in a terminal's bars
    segments: tuple[str, ...] = ()  # parts of a step that have its colour; no part belongs to two walls
