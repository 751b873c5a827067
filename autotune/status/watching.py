"""Reads a study's journal from another process: once, or until the study ends or its tuner has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from autotune.looks.wrapping import showing_console
from autotune.status.terminal import show_status
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, events_of, read_study
from autotune.tuning.live import LiveView, PlainView, view_for
from autotune.tuning.study import held, suspended
from autotune.tuning.study_status import StudyStatus, study_status

LOOK_S = 1.0
OVER = ("ended", "stopped")


def look(folder: Path) -> tuple[StudyStatus, float]:
    """Returns the current status and its time. Raises BadInputError if the folder has no readable journal."""
    now = time.time()
    # before reading the journal: the tuner writes its last event before it releases the lock
    is_held, still = held(folder), suspended(folder)
    return study_status(read_study(folder), folder=str(folder), now=now, held=is_held, suspended=still), now


def follow(folder: Path, *, wait: Callable[[float], None] = time.sleep) -> StudyStatus:
    """Shows the growing log, and on a terminal the panel below it, until the study ends, its tuner has ended, or
    Ctrl-C. Reads the journal again whenever it has grown."""
    look(folder)  # raises for a folder that is not a study before anything is shown
    view = view_for(showing_console(), folder=folder)
    with suppress(KeyboardInterrupt), view.live():
        shown, seen = 0, -1
        while True:
            size = (folder / JOURNAL).stat().st_size
            if size != seen or held(folder) is False:
                shown, seen = _show_new(folder, view, shown), size
                if look(folder)[0].state in OVER:
                    break
            wait(LOOK_S)
    status, now = look(folder)
    show_status(status, now)
    return status


def _show_new(folder: Path, view: PlainView | LiveView, shown: int) -> int:
    """Shows the new events; returns the number of events shown so far."""
    events = events_of(folder)
    history = History(events[:shown])
    for event in events[shown:]:
        history.fold(event)
        view.show(event, history)
    return len(events)
