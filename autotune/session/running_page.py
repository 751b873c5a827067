"""Writes report.html before and after every burst of a running study; a failure to write it stops nothing.

Writing takes at most a twentieth of the elapsed time. Real bursts last much longer than that, simulated ones do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.tuning.events import BurstFinished, BurstStarted, Event
from autotune.tuning.history import History

MAX_SHARE = 0.05  # fraction of the elapsed time that writing the page may take


@dataclass(kw_only=True)
class RunningPage:
    """A listener of the journal. `write` writes the page of a history; `say` is called if it cannot be written."""

    folder: Path
    say: Callable[[str], None]
    write: Callable[..., None]
    clock: Callable[[], float] = time.monotonic
    _started: float = field(init=False)
    _spent_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._started = self.clock()

    def show(self, event: Event, history: History) -> None:
        before = self.clock()
        if not isinstance(event, BurstStarted | BurstFinished) or self._spent_s > MAX_SHARE * (before - self._started):
            return
        try:
            self.write(history, study_dir=self.folder, now=event.at)
        except Exception as error:  # a full disk or a bug: a study must not stop because of its page
            why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self.say(f"report.html could not be written: {why}")
        self._spent_s += self.clock() - before
