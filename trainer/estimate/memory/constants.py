"""The physical constants of the memory estimate: rows of `memory.csv`, each with its unit and origin."""

from __future__ import annotations

from functools import cache

from trainer.recipe.tables import figure, read_table


@cache
def _constants() -> dict[str, float]:
    rows = read_table("memory.csv", package="trainer.estimate.memory")
    return {row["name"]: figure(row, "value", table="memory.csv") for row in rows}


def constant(name: str) -> float:
    """Returns a constant's value in the table's unit. Raises KeyError for a name without a row."""
    return _constants()[name]
