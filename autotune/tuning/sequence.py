"""Checks, before events are folded, that the lines of a journal are in an order that a tuner writes.

A swapped, lost or repeated line is reported with its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import singledispatchmethod
from pathlib import Path

from autotune.tuning.events import (
    Analyzed,
    BurstFinished,
    BurstLost,
    BurstStarted,
    Event,
    Judged,
    Proposed,
    Refused,
    StudyStarted,
)
from trainer.errors import BadInputError, Problem


def refuse_damage(path: Path, events: Sequence[Event], lines: Sequence[bytes]) -> None:
    """Raises BadInputError for the first line that may not follow the ones before it. `lines` are the raw `events`."""
    sequence, seen = _Sequence(), dict[bytes, int]()
    for number, (event, line) in enumerate(zip(events, lines, strict=True), 1):
        before = seen.setdefault(line, number)
        what = f"it repeats line {before}" if before != number else sequence.damage(event)
        if what is not None:
            raise _damaged(path, number, what)


def _damaged(path: Path, number: int, what: str) -> BadInputError:
    hint = "the file was changed or damaged: restore it from a copy, or start a new study"
    if number > 1:
        hint = (
            f"the file was changed or damaged: restore it from a copy, or keep its first {number - 1} lines "
            f"(`head -n {number - 1}`) and continue from there with --resume"
        )
    return BadInputError(Problem(where=f"{path}, line {number}", what=f"the line cannot stand here: {what}", hint=hint))


@dataclass(kw_only=True)
class _Sequence:
    """State of the journal after some lines, to which the next line must fit."""

    started: bool = False
    proposed: int = 0  # number of trials proposed
    finished: int = 0  # number of bursts finished
    open_burst: BurstStarted | None = None
    traced: dict[int, bool] = field(default_factory=dict)  # trial → whether its first burst is traced
    unanalyzed: int | None = None  # number of the finished burst that still needs its analysis
    unjudged: int | None = None  # number of the trial that still needs its verdict
    ran: dict[int, int] = field(default_factory=dict)  # trial → its last finished burst; 0 if it was refused

    def damage(self, event: Event) -> str | None:
        """Returns what is wrong with the next event; else updates the state and returns None."""
        if not self.started and not isinstance(event, StudyStarted):
            return "the journal does not begin with the study's first line"
        if self.unanalyzed is not None and isinstance(event, Proposed | BurstStarted | Judged):
            return f"the analysis of burst {self.unanalyzed} is missing"
        return self._next(event)

    @singledispatchmethod
    def _next(self, event: Event) -> str | None:
        """Accepts other events, such as those on a run of the tuner, anywhere."""
        return None

    @_next.register
    def _(self, event: StudyStarted) -> str | None:
        if self.started:
            return "the study starts a second time"
        self.started = True
        return None

    @_next.register
    def _(self, event: Proposed) -> str | None:
        if event.trial != self.proposed:
            return f"trial {event.trial} is proposed where trial {self.proposed} should be"
        if event.parent is not None and event.parent not in self.ran:
            return f"trial {event.trial} is made from trial {event.parent}, which has no burst yet"
        if self.unjudged is not None:
            return f"trial {event.trial} is proposed before the verdict on trial {self.unjudged}"
        self.proposed, self.unjudged = event.trial + 1, event.trial
        self.traced[event.trial] = bool(event.recipe.get("burst", {}).get("trace_steps"))
        return None

    @_next.register
    def _(self, event: Refused) -> str | None:
        if self.open_burst is not None or event.trial != self.unjudged or event.trial in self.ran:
            return f"trial {event.trial} is refused, and is not the trial that was proposed last"
        self.ran[event.trial] = 0
        return None

    @_next.register
    def _(self, event: BurstStarted) -> str | None:
        if self.open_burst is not None:
            return f"burst {event.burst} starts before burst {self.open_burst.burst} has finished"
        if event.burst != self.finished + 1:
            return f"burst {event.burst} starts where burst {self.finished + 1} should"
        if not 0 <= event.trial < self.proposed:
            return f"burst {event.burst} is of trial {event.trial}, which was not proposed"
        if event.trial not in self.ran and event.trial != self.unjudged:
            return f"burst {event.burst} is of trial {event.trial}, which never ran"
        self.open_burst = event
        return None

    @_next.register
    def _(self, event: BurstLost) -> str | None:
        return self._of_open_burst(event, "is lost")

    @_next.register
    def _(self, event: BurstFinished) -> str | None:
        if (what := self._of_open_burst(event, "finishes")) is not None:
            return what
        if self.open_burst is not None and self.open_burst.purpose == "measure":
            self.unanalyzed = event.burst if event.outcome.ok and self.traced[event.trial] else None
        self.finished, self.open_burst = event.burst, None
        self.ran[event.trial] = event.burst
        return None

    @_next.register
    def _(self, event: Analyzed) -> str | None:
        if self.open_burst is not None or event.burst != self.finished or self.ran.get(event.trial) != event.burst:
            return f"burst {event.burst} of trial {event.trial} is analyzed, and is not the burst that finished last"
        self.unanalyzed = None
        return None

    @_next.register
    def _(self, event: Judged) -> str | None:
        if self.open_burst is not None:
            return f"the verdict on trial {event.trial} precedes the end of burst {self.open_burst.burst}"
        if event.trial not in self.ran:
            return f"the verdict is on trial {event.trial}, which never ran"
        if self.unjudged not in (None, event.trial):
            return f"the verdict is on trial {event.trial}, and trial {self.unjudged} waits for one"
        self.unjudged = None
        return None

    def _of_open_burst(self, event: BurstLost | BurstFinished, what: str) -> str | None:
        if self.open_burst is None:
            return f"burst {event.burst} {what} and was not started"
        if (event.burst, event.trial) != (self.open_burst.burst, self.open_burst.trial):
            started = f"burst {self.open_burst.burst} of trial {self.open_burst.trial} was started"
            return f"burst {event.burst} of trial {event.trial} {what}, and {started}"
        return None
