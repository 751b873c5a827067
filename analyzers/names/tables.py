"""Reads the tables of this folder: one row per pattern, each with its source."""

from __future__ import annotations

import csv
from importlib import resources


def rows(file: str) -> list[dict[str, str]]:
    """Returns the rows of a table, from top to bottom, by column."""
    text = resources.files("analyzers.names").joinpath(file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
