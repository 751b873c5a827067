"""The physical constants of the step-time model: one row of `constants.csv` each, with unit and what fixed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from trainer.recipe.tables import read_table

Constants = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Constant:
    """`low` and `high` are the bounds within which it may be fitted; None where it is not fitted. `prior` is what it
    is drawn to where the data are silent."""

    name: str
    prior: float
    value: float
    low: float | None
    high: float | None
    unit: str
    fixed_by: str


@cache
def constant_table() -> dict[str, Constant]:
    rows = (
        Constant(
            name=row["name"],
            prior=float(row["prior"]),
            value=float(row["value"]),
            low=float(row["low"]) if row["low"] else None,
            high=float(row["high"]) if row["high"] else None,
            unit=row["unit"],
            fixed_by=row["fixed_by"],
        )
        for row in read_table("constants.csv", package="trainer.estimate.time")
    )
    return {row.name: row for row in rows}


@cache
def constants() -> Constants:
    return {name: row.value for name, row in constant_table().items()}
