"""Paths of the data that benchmarks and tests read: tables of measured and published figures in `data/` (see its
README), and real traces, which are too large for the repository. A missing file ends the program with a message and
exit code 2."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = Path(__file__).parent / "data"
TRACES = ROOT.parent / "shared" / "traces"  # next to the checkout, if present


def data_file(name: str, *, folder: Path = DATA) -> Path:
    """Returns a table of the folder; ends the program if it is missing."""
    return _there(folder / name, f"name a folder that holds {name}, or leave --facts out for {DATA}")


def table_rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def real_trace(name: str, *, folder: Path, source: str) -> Path:
    """Returns a real trace; ends the program if it is missing."""
    return _there(folder / name, f"put {source} there, or name the folder that holds it with --traces")


def _there(path: Path, what_to_do: str) -> Path:
    if path.is_file():
        return path
    print(f"{path} is not there: {what_to_do}", file=sys.stderr)
    raise SystemExit(2)
