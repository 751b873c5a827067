"""Where benchmarks and tests find their data: tables of measured and published figures in `data/` (see its README), and
real traces, which are too large to travel along. What is not there is said in a sentence, with exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = Path(__file__).parent / "data"
TRACES = ROOT.parent / "shared" / "traces"  # beside the checkout, where they are there at all
TRAINER_LOGS = ROOT.parent / "shared" / "facts" / "trainer_logs"


def data_file(name: str, *, folder: Path = DATA) -> Path:
    """A table of the folder; ends the program where it is not there."""
    return _there(folder / name, f"name a folder that holds {name}, or leave --facts out for {DATA}")


def real_trace(name: str, *, folder: Path, source: str) -> Path:
    """A real trace; ends the program where it is not there."""
    return _there(folder / name, f"put {source} there, or name the folder that holds it with --traces")


def _there(path: Path, what_to_do: str) -> Path:
    if path.is_file():
        return path
    print(f"{path} is not there: {what_to_do}", file=sys.stderr)
    raise SystemExit(2)
