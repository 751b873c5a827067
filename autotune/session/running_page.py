"""report.html while the study runs: written before and after every burst, and never a reason to stop one.

Writing it may take a twentieth of the time at most: bursts of a real machine last much longer than a page, simulated
ones do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.report import write_running
from autotune.tuning.events import BurstFinished, BurstStarted, Event
from autotune.tuning.history import History

SHARE = 0.05  # of the time


@dataclass(kw_only=True)
class RunningPage:
    """A listener of the journal. `say` is told where the page cannot be written."""

    folder: Path
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _spent_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def show(self, event: Event, history: History) -> None:
        before = self.clock()
        if not isinstance(event, BurstStarted | BurstFinished) or self._spent_s > SHARE * (before - self._began):
            return
        try:
            write_running(history, study_dir=self.folder, now=event.at)
        except Exception as error:  # of a disk, or a fault of ours: a night must not end for a page
            said = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self.say(f"report.html could not be written: {said}")
        self._spent_s += self.clock() - before
