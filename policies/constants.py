"""The fitted and judged numbers of the policy, from `constants.csv`: group, value, unit and origin.

`origin` is `fitted` (to the runs that `source` names), `measured` (read from a measurement), `numerical` (precision of
a computation: no result depends on it) or `judged` (chosen without a measurement).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainer.recipe.tables import read_table


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One row of constants.csv."""

    group: str
    value: float
    unit: str
    meaning: str
    origin: str
    source: str


@cache
def constants() -> dict[str, Constant]:
    """Returns the table by name, in its order."""
    return {
        row["name"]: Constant(
            group=row["group"],
            value=float(row["value"]),
            unit=row["unit"],
            meaning=row["meaning"],
            origin=row["origin"],
            source=row["source"],
        )
        for row in read_table("constants.csv", package="policies")
    }


def constant(name: str) -> float:
    """Returns a constant's value. Raises KeyError if the table has no such row."""
    return constants()[name].value
