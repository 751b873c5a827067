"""The physical constants of the memory estimate: rows of `memory.csv`, each with its unit and what fixed it."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files


@cache
def _constants() -> dict[str, float]:
    text = (files("trainer.estimate") / "memory.csv").read_text(encoding="utf-8")
    return {row["name"]: float(row["value"]) for row in csv.DictReader(text.splitlines())}


def constant(name: str) -> float:
    """The value in the table's unit. KeyError for a name without a row."""
    return _constants()[name]
