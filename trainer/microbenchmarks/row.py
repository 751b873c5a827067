"""One row of a probe: a micro-benchmark with its measured figure, once it ran.

A row is planned without figures (`trainer.microbenchmarks.groups`), measured by ranks or computed by the simulated
engine, and kept in the journal. From the row and the recipe, the value that the tables predict
(`trainer.estimate.probe`) and the surrogate factors it informs (`policies.surrogate.probed`) can be recomputed.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec

from trainer.recipe import Recipe

SLOW_GPU, SLOW_CPU = 1.05, 1.25  # a rank that takes this many times the median of the ranks is named
UNSTEADY = 1.25  # ratio of highest to lowest repeat of one rank that shows a busy neighbour or changing clocks


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-benchmark. `changes` are knob values set in the recipe for the measured piece of work; `sizes` are
    numbers of its kind (bytes, ranks).

    `measured` is the median over ranks of each rank's median repeat; `low` and `high` are the extremes of the median
    rank's repeats; `failure` is the reason if there is no figure. `slow_rank` took `slow_by` times the median over
    ranks, and more than the threshold in every repeat.
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
    ranks: int = 0  # number of ranks that measured it
    slow_rank: int | None = None
    slow_by: float | None = None
    failure: str | None = None

    def recipe(self, base: Recipe) -> Recipe:
        """Returns the recipe whose work the row measures: `base` with the row's changes."""
        return base.replace(dict(self.changes)) if self.changes else base

    @property
    def unsteady(self) -> bool:
        return bool(self.low and self.high and self.high / self.low > UNSTEADY)


def measured(row: Row, repeats_by_rank: dict[int, list[float]], *, slow: float | None = SLOW_GPU) -> Row:
    """Returns the row with the figures of {rank: its repeats}.

    Names the rank that takes over `slow` times the median; None names none.
    """
    of_rank = {rank: median(repeats) for rank, repeats in repeats_by_rank.items() if repeats}
    if not of_rank:
        return failed(row, "no rank measured it")
    middle = sorted(of_rank, key=lambda rank: (of_rank[rank], rank))[(len(of_rank) - 1) // 2]
    value, slow_rank, slow_by = of_rank[middle], None, None
    if slow is not None and len(of_rank) > 1 and value > 0:
        slowest = max(of_rank, key=lambda rank: min(repeats_by_rank[rank]))
        # decided by the rank's best repeat, so that one disturbed repeat does not name it
        if min(repeats_by_rank[slowest]) > slow * value:
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
    """Returns the row as planned, without figures."""
    return Row(group=row.group, kind=row.kind, name=row.name, unit=row.unit, changes=row.changes, sizes=row.sizes)


def failed(row: Row, why: str) -> Row:
    """Returns the row with `why` as its failure."""
    return msgspec.structs.replace(row, failure=why)
