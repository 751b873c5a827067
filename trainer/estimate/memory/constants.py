"""The physical constants of the memory estimate: rows of `memory.csv`, each with its unit and what fixed it."""

from __future__ import annotations

from functools import cache

from trainer.recipe.tables import read_table


@cache
def _constants() -> dict[str, float]:
    return {row["name"]: float(row["value"]) for row in read_table("memory.csv", package="trainer.estimate.memory")}


def constant(name: str) -> float:
    """The value in the table's unit. KeyError for a name without a row."""
    return _constants()[name]
