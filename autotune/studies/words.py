"""A study's row in words, the same for the terminal and the page."""

from __future__ import annotations

from autotune.looks.quantities import NONE, interval, speedup
from autotune.studies.gathered import Row

STATES = {"running": "running", "stopped": "killed", "unknown": "not ended"}
ENDS = {"budget": "ended by its budget"}  # other ends say it themselves


def gain_words(row: Row) -> str:
    """`1.83× (1.80–1.86)`, and where it is no measurement of GPUs."""
    if row.speedup is None or row.speedup_ci is None:
        return "nothing runs"
    return f"{speedup(row.speedup)} ({interval(*row.speedup_ci, words='').strip()})"


def state_words(row: Row) -> str:
    return STATES.get(row.state) or ENDS.get(row.status or "", row.status or NONE)


def studies_words(number: int) -> str:
    return "1 study" if number == 1 else f"{number} studies"
