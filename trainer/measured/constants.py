"""Reads a table of fitted constants: each row has the value, the prior that the fit shrinks it to, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.recipe.tables import figure, read_table


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One fitted constant.

    `low` and `high` bound the fit; None if it is not fitted. `prior` is the value that the fit shrinks to where data
    are few.
    """

    name: str
    prior: float
    value: float
    low: float | None
    high: float | None
    unit: str


def read_constants(table: str, *, package: str) -> dict[str, Constant]:
    """Returns the constants of a table by name, in the table's order."""
    rows = (
        Constant(
            name=row["name"],
            prior=figure(row, "prior", table=table),
            value=figure(row, "value", table=table),
            low=float(row["low"]) if row["low"] else None,
            high=float(row["high"]) if row["high"] else None,
            unit=row["unit"],
        )
        for row in read_table(table, package=package)
    )
    return {row.name: row for row in rows}
