"""One row of a probe: a micro-benchmark, and once it ran, what it measured.

A row is planned without figures (`trainer.microbenchmarks.groups`), measured by ranks or played by the simulated
engine, and kept in the journal. Anyone who has the recipe can compute again what the tables expect of it
(`trainer.estimate.probe`) and what it tells the surrogate (`policies.surrogate.probed`).
"""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec

from trainer.recipe import Recipe

SLOW_GPU, SLOW_CPU = 1.05, 1.25  # times the median of the ranks: a rank that takes so long is named
UNSTEADY = 1.25  # high over low of one rank's repeats: a neighbour, or clocks that move


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-benchmark. `changes` are knobs: a layer's work is that of the recipe with them; `sizes` are numbers of
    its kind (bytes, ranks).

    `measured` is the median of the ranks, each by the median of its repeats, and `low` and `high` the extremes of the
    repeats of that rank; `failure` says why there is no figure. `slow_rank` took `slow_by` times the median, and more
    than it in every repeat.
    """

    group: str
    kind: str
    name: str
    unit: str
    changes: dict[str, Any] = {}
    sizes: dict[str, float] = {}
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    ranks: int = 0  # that measured it
    slow_rank: int | None = None
    slow_by: float | None = None
    failure: str | None = None

    def recipe(self, base: Recipe) -> Recipe:
        """Returns the recipe that the row measures a piece of."""
        return base.replace(dict(self.changes)) if self.changes else base

    @property
    def unsteady(self) -> bool:
        return bool(self.low and self.high and self.high / self.low > UNSTEADY)


def measured(row: Row, repeats_by_rank: dict[int, list[float]], *, slow: float | None = SLOW_GPU) -> Row:
    """Returns the row with what ranks measured, {rank: its repeats}; a rank that takes `slow` times the median is named
    (None: none is)."""
    of_rank = {rank: median(repeats) for rank, repeats in repeats_by_rank.items() if repeats}
    if not of_rank:
        return failed(row, "no rank measured it")
    middle = sorted(of_rank, key=lambda rank: (of_rank[rank], rank))[(len(of_rank) - 1) // 2]
    value, slow_rank, slow_by = of_rank[middle], None, None
    if slow is not None and len(of_rank) > 1 and value > 0:
        slowest = max(of_rank, key=lambda rank: min(repeats_by_rank[rank]))
        if min(repeats_by_rank[slowest]) > slow * value:  # at its best: not one repeat that something disturbed
            slow_rank, slow_by = slowest, of_rank[slowest] / value
    return msgspec.structs.replace(
        row,
        measured=value,
        low=min(repeats_by_rank[middle]),
        high=max(repeats_by_rank[middle]),
        ranks=len(of_rank),
        slow_rank=slow_rank,
        slow_by=slow_by,
    )


def unmeasured(row: Row) -> Row:
    """Returns the row as it was planned."""
    return Row(group=row.group, kind=row.kind, name=row.name, unit=row.unit, changes=row.changes, sizes=row.sizes)


def failed(row: Row, why: str) -> Row:
    """Returns the row with the reason why it has no figure."""
    return msgspec.structs.replace(row, failure=why)
