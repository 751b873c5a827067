"""Reads the constants of `constants.csv` by name."""

from __future__ import annotations

from functools import cache

from trainer.recipe.tables import figure, read_table


@cache
def _constants() -> dict[str, float]:
    rows = read_table("constants.csv", package="trainer.engines.simulated.memory")
    return {row["name"]: figure(row, "value", table="constants.csv of simulated memory") for row in rows}


def constant(name: str) -> float:
    return _constants()[name]
