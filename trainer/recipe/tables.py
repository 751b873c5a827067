"""The CSV tables that travel with the packages, row by row."""

from __future__ import annotations

import csv
from importlib.resources import files


def read_table(name: str, *, package: str = "trainer.recipe") -> list[dict[str, str]]:
    """The rows of a table of a package; cells are text, absent ones empty."""
    text = (files(package) / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
