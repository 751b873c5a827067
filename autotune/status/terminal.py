"""Prints the state of a study to a terminal or a pipe."""

from __future__ import annotations

from autotune.looks.wrapping import plain_console, say
from autotune.tuning.study_status import StudyStatus, rows_of

NAMES_WIDTH = 11  # columns of the row names


def show_status(status: StudyStatus, now: float) -> None:
    """Prints the study's name and folder, then its non-empty rows."""
    console = plain_console()
    say(console, f"study {status.study} in {status.folder}")
    for name, text in rows_of(status, now):
        say(console, text, lead=name.ljust(NAMES_WIDTH))
