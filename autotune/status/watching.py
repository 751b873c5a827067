"""Looks at a study's journal from outside: once, or until the study ends or its tuner is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from autotune.tuning.history import History
from autotune.tuning.journal import events_of, read_study
from autotune.tuning.live import LiveView, PlainView, view_for
from autotune.tuning.standing import Standing, standing_of
from autotune.tuning.study import held

LOOK_S = 1.0


def look(folder: Path) -> tuple[Standing, float]:
    """Where the study stands now. Raises BadInputError if the folder holds no readable journal."""
    now = time.time()
    is_held = held(folder)  # before the journal is read: a last word is written before the lock goes
    return standing_of(read_study(folder), folder=str(folder), now=now, held=is_held), now


def follow(folder: Path, *, wait: Callable[[float], None] = time.sleep) -> Standing:
    """The log as it grows, below it on a terminal the panel; until the study ends, its tuner is gone, or Ctrl-C."""
    standing, _ = look(folder)
    view = view_for(Console(), folder=folder)
    with suppress(KeyboardInterrupt), view.live():
        told = 0
        while True:
            told = _tell(folder, view, told)
            if standing.state in ("ended", "stopped"):
                break
            wait(LOOK_S)
            standing, _ = look(folder)
    standing, now = look(folder)
    from autotune.status.terminal import show_standing

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
