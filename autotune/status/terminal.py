"""Where a study stands, as a terminal or a pipe shows it."""

from __future__ import annotations

from autotune.looks.wrapping import plain_console, say
from autotune.tuning.standing import Standing, rows_of

NAMES = 11  # columns


def show_standing(standing: Standing, now: float) -> None:
    """Its name and folder, then a row for each thing there is to say."""
    console = plain_console()
    say(console, f"study {standing.study} in {standing.folder}")
    for name, text in rows_of(standing, now):
        say(console, text, lead=name.ljust(NAMES))
