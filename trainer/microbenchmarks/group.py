"""A group of micro-benchmarks: the rows that it plans for a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe

GROUP_S = 20.0  # most seconds of a group after start-up
PROBE_S = 120.0  # most seconds of all groups together, start-up included


@dataclass(frozen=True, kw_only=True)
class Group:
    """One group of micro-benchmarks. `rows` returns the rows it plans for a recipe, without figures."""

    name: str
    order: int  # position among the groups of a probe: the first ones are measured even if time is short
    rows: Callable[[Recipe], list[Row]]
