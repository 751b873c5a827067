"""Reads the CSV tables that come with the packages."""

from __future__ import annotations

import csv
from importlib.resources import files

from trainer.errors import refused


def read_table(name: str, *, package: str = "trainer.recipe") -> list[dict[str, str]]:
    """Returns the rows of a table of a package; cells are text, absent ones empty."""
    text = (files(package) / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def figure(row: dict[str, str], column: str, *, table: str) -> float:
    """Returns the number in a cell.

    Raises BadInputError, which names the row by its first cell, if the cell is empty: no other figure replaces it.
    """
    if not row[column]:
        raise refused(f"{table} {next(iter(row.values()))}", f"no figure in {column}", "write it, with its source")
    return float(row[column])
