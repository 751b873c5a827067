"""Prints the studies of a folder, two or three lines each."""

from __future__ import annotations

from autotune.looks.wrapping import plain_console, say
from autotune.studies.gathered import Gathered
from autotune.studies.words import gain_words, state_words, studies_words


def show_studies(document: Gathered) -> None:
    """Prints recipe, gain, walls and cost of each study, then the studies that could not be read."""
    console = plain_console()
    for row in document.studies:
        say(console, f"{row.folder}: {gain_words(row)}, {state_words(row)}", style="bold")
        say(console, f"{row.started} · {row.model} on {row.ran_on} · {row.cost}", lead="  ")
        if row.walls:
            say(console, "; ".join(row.walls), lead="  walls    ")
        if row.changed:
            say(console, row.changed, lead="  changed  ")
    for each in document.unread:
        say(console, f"{each.folder}: not read: {each.why}")
    say(console, studies_words(len(document.studies)))
