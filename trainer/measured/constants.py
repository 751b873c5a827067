"""A table of fitted constants, row by row: what each is, what it is drawn to, and within what it may lie."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.recipe.tables import figure, read_table


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


def read_constants(table: str, *, package: str) -> dict[str, Constant]:
    """Reads the constants by name, in the table's order."""
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
