"""Writes the words of a study's row, for the terminal and the page."""

from __future__ import annotations

from autotune.looks.quantities import interval, speedup_text
from autotune.studies.gathered import Row
from autotune.tuning.study_status import end_words

STATES = {"running": "running", "suspended": "suspended", "stopped": "killed", "unknown": "not ended"}


def gain_words(row: Row) -> str:
    """Returns `1.83× (1.80–1.86)`, marked if it is provisional."""
    if row.speedup is None or row.speedup_ci is None:
        return "nothing runs"
    few = ", provisional" if row.provisional or row.speedup_provisional else ""
    return f"{speedup_text(row.speedup)} ({interval(*row.speedup_ci, words='').strip()}{few})"


def state_words(row: Row) -> str:
    return STATES.get(row.state) or end_words(row.status)


def studies_words(number: int) -> str:
    return "1 study" if number == 1 else f"{number} studies"
