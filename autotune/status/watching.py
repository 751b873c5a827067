"""Looks at a study's journal from outside: once, or until the study ends or its tuner is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from autotune.looks.wrapping import showing_console
from autotune.status.terminal import show_standing
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, events_of, read_study
from autotune.tuning.live import LiveView, PlainView, view_for
from autotune.tuning.standing import Standing, standing_of
from autotune.tuning.study import held, suspended

LOOK_S = 1.0
OVER = ("ended", "stopped")


def look(folder: Path) -> tuple[Standing, float]:
    """Where the study stands now. Raises BadInputError if the folder holds no readable journal."""
    now = time.time()
    is_held, still = (
        held(folder),
        suspended(folder),
    )  # before the journal is read: a last word is written before the lock goes
    return standing_of(read_study(folder), folder=str(folder), now=now, held=is_held, suspended=still), now


def follow(folder: Path, *, wait: Callable[[float], None] = time.sleep) -> Standing:
    """The log as it grows, below it on a terminal the panel; until the study ends, its tuner is gone, or Ctrl-C. The
    journal is read again when it has grown."""
    look(folder)  # refuses what is no study before anything is shown
    view = view_for(showing_console(), folder=folder)
    with suppress(KeyboardInterrupt), view.live():
        told, seen = 0, -1
        while True:
            size = (folder / JOURNAL).stat().st_size
            if size != seen or held(folder) is False:
                told, seen = _tell(folder, view, told), size
                if look(folder)[0].state in OVER:
                    break
            wait(LOOK_S)
    standing, now = look(folder)
    show_standing(standing, now)
    return standing


def _tell(folder: Path, view: PlainView | LiveView, told: int) -> int:
    """Shows the events that are new: how many are shown now."""
    events = events_of(folder)
    history = History(events[:told])
    for event in events[told:]:
        history.fold(event)
        view.show(event, history)
    return len(events)
