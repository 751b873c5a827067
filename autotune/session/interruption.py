"""Handles what ends a run of the tuner from outside: Ctrl-C, TERM, USR1, a closed terminal, or the deadline.

Each raises KeyboardInterrupt in the loop; the engine ends the running burst, and `ended_event` returns the last
event of the journal.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from types import FrameType, TracebackType

from autotune.tuning.events import Ended
from policies.reason import Reason, ReasonKind
from trainer.launchers.slurm.allocation import reason_of_the_signal

SIGNALS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "TERM",
    signal.SIGHUP: "its terminal closing",
    signal.SIGUSR1: "USR1",  # sent by Slurm ahead of a time limit if the job asks for it (--signal)
    signal.SIGUSR2: "USR2",
}
ALL = (*SIGNALS, signal.SIGALRM)


class Interruption:
    """Context manager that turns signals and the deadline `until` (seconds since the epoch, or None) into
    KeyboardInterrupt, and restores the previous handlers on exit."""

    def __init__(self, until: float | None = None) -> None:
        self._until = until
        self._received: int | None = None

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._interrupt) for number in ALL}
        if self._until is not None:
            signal.setitimer(signal.ITIMER_REAL, max(self._until - time.time(), 0.001))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def settle(self) -> None:
        """Ignores further signals."""
        for number in ALL:
            signal.signal(number, signal.SIG_IGN)

    @property
    def received(self) -> bool:
        return self._received is not None

    @property
    def by_ctrl_c(self) -> bool:
        return self._received == signal.SIGINT

    def ended_event(self, reason: str = "") -> Ended:
        """Returns the event that ends the journal; `reason` is used if no signal was received."""
        self.settle()
        if self._received == signal.SIGALRM and self._until is not None:
            at = f"{datetime.fromtimestamp(self._until):%H:%M}"
            return Ended(status="budget", reason=Reason(kind=ReasonKind.DEADLINE_REACHED, figures={"at": at}))
        by = next((words for number, words in SIGNALS.items() if number == self._received), "a signal")
        why = reason_of_the_signal(os.environ) if self._received == signal.SIGTERM else None
        text = f"ended by {by}" + (f": {why}" if why else "")
        because = text if self.received else reason or text
        return Ended(status="interrupted", reason=Reason(kind=ReasonKind.INTERRUPTED, figures={"because": because}))

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        raise KeyboardInterrupt


def ended_by_error(what: str) -> Ended:
    """Returns the event that ends the journal of a run that an error stopped."""
    reason = Reason(kind=ReasonKind.INTERRUPTED, figures={"because": f"stopped by an error: {what}"})
    return Ended(status="interrupted", reason=reason)
