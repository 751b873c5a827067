"""Reads the CSV tables that come with the packages."""

from __future__ import annotations

import csv
from importlib.resources import files

from trainer.errors import refused


def read_table(name: str, *, package: str = "trainer.recipe") -> list[dict[str, str]]:
    """Returns the rows of a table of a package; cells are text, absent ones empty.

    Raises BadInputError if a row has no name, its first cell.
    """
    text = (files(package) / name).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    for number, row in enumerate(rows, 1):
        column, named = next(iter(row.items()))
        if not named:
            raise refused(f"{name} row {number}", f"nothing in {column}", "write the name of the row")
    return rows


def figure(row: dict[str, str], column: str, *, table: str) -> float:
    """Returns the number in a cell.

    Raises BadInputError, which names the row by its first cell, if the cell is empty: no other figure replaces it.
    """
    if not row[column]:
        raise refused(f"{table} {next(iter(row.values()))}", f"no figure in {column}", "write it, with its source")
    return float(row[column])


def words(row: dict[str, str], column: str, *, table: str) -> str:
    """Returns the words in a cell; "" if it is `none`.

    Raises BadInputError, which names the row by its first cell, if the cell is empty.
    """
    if not row[column]:
        raise refused(f"{table} {next(iter(row.values()))}", f"nothing in {column}", "write its words, or none")
    return "" if row[column] == "none" else row[column]
