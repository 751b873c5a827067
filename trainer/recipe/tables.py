"""The package's CSV tables, row by row."""

from __future__ import annotations

import csv
from importlib.resources import files


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of a table of this package; cells are text, absent ones empty."""
    text = (files("trainer.recipe") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
