"""Writes and reads the append-only file of a study's events, from which a killed study resumes.

A line is flushed to disk before anything acts on it. A resumed run executes the same loop: while the file has events
left, `replay_or_append` returns the recorded event instead of doing the work again; after the last one it does the work
and writes the event. There is no separate code for resuming.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from pydantic import ValidationError

from autotune.tuning.events import (
    SCHEMA,
    BurstLost,
    Ended,
    Event,
    LessonAdded,
    Probed,
    Proposed,
    StudyStarted,
    TunerStarted,
)
from autotune.tuning.history import History
from autotune.tuning.provisional import with_provisional_verdicts
from autotune.tuning.sequence import refuse_damage
from trainer.errors import BadInputError, Problem
from trainer.recipe import Recipe

JOURNAL = "journal.jsonl"
Listener = Callable[[Event, History], None]  # called for every event written, not for replayed ones
_FOLDED_ONLY = (
    TunerStarted,
    LessonAdded,
    Probed,
    BurstLost,
    Ended,
)  # about a run of the tuner, not a step of the study: folded, and never returned by `replay_or_append`

E = TypeVar("E", bound=Event)
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class OtherStepError(BadInputError):
    """An earlier run recorded another step than this version computes; `Loop.run` then replays the journal as
    written."""

    def __init__(self, path: Path, found: Event, *, expected: object) -> None:
        super().__init__(
            Problem(
                where=str(path),
                what=f"expected an event {expected!r} here, found {found.__struct_config__.tag!r}: another version "
                "wrote this study",
                hint="resume it with the version that started it, or start a new study",
            )
        )


class _Header(msgspec.Struct):
    event: str = ""
    schema: int = 0


def read_events(path: Path) -> tuple[list[Event], int]:
    """Returns the events of a journal and the bytes they fill; the rest of the file is a line cut off by a kill.

    Raises BadInputError if there is no journal, if a newer version wrote it, if a complete line cannot be read, or if
    the events are not in an order that a tuner writes.
    """
    if not path.is_file():
        raise BadInputError(
            Problem(
                where=str(path.parent),
                what=f"not a study: it has no {JOURNAL}",
                hint="name a folder that `moe-autotune run` or `bisect` made",
            )
        )
    raw = path.read_bytes()
    whole = raw.rfind(b"\n") + 1
    lines = raw[:whole].splitlines()
    if lines:
        _refuse_newer(path, lines[0])
    events = [_parse(path, number, line) for number, line in enumerate(lines, 1)]
    refuse_damage(path, events, lines)
    return events, whole


def events_of(folder: Path) -> list[Event]:
    """Returns the events in a folder so far; empty if it has no journal yet."""
    return read_events(folder / JOURNAL)[0] if (folder / JOURNAL).is_file() else []


def read_study(folder: Path) -> History:
    """Returns the history of a study folder, open trials judged provisionally. Raises BadInputError, see
    `read_events`."""
    events, _ = read_events(folder / JOURNAL)
    history = History(events)
    if history.study is None:
        raise BadInputError(
            Problem(
                where=str(folder / JOURNAL),
                what="the journal has no first line: the study is just starting, or was stopped before it did",
                hint="look again in a moment; if nothing runs there, delete the folder and start again",
            )
        )
    return with_provisional_verdicts(history)


class Journal:
    """An open journal.

    `history`: the events that the loop has reached, which on resume grows as the loop replays them; `whole`: all
    recorded events.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float],
        listener: Listener = lambda event, history: None,
    ) -> None:
        self.path = path
        self.history = History()
        self._clock = clock
        self._listener = listener
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        events, whole = read_events(path)
        self.torn_bytes = os.fstat(self._fd).st_size - whole
        if self.torn_bytes:
            os.ftruncate(self._fd, whole)
            os.fsync(self._fd)
        self._recorded = deque(events)
        self.whole = History(events) if events else self.history
        self._fold_tuner_events()

    @property
    def next_recorded(self) -> Event | None:
        """Returns the recorded event at this point; None once the loop has reached the end of the file."""
        return self._recorded[0] if self._recorded else None

    def replay_or_append(self, kind: type[E], make: Callable[[], E], **expected: object) -> E:
        """Returns the next recorded event; if none is left, writes the event from `make` and returns it.

        Raises OtherStepError if the recorded event is of another kind, or has other fields than `expected`.
        """
        if not self._recorded:
            return self.append(make())
        event = self._recorded[0]
        if not isinstance(event, kind) or any(getattr(event, name) != value for name, value in expected.items()):
            raise OtherStepError(self.path, event, expected=kind.__struct_config__.tag)
        self.replay_next()
        return event

    def replay_next(self) -> None:
        """Updates the history by the next recorded event, of any type."""
        self.history.fold(self._recorded.popleft())
        self._fold_tuner_events()

    def next_is(self, kind: type[E], *, otherwise: bool) -> bool:
        """Returns whether the next recorded event is of this kind; `otherwise` if none is left."""
        return isinstance(self._recorded[0], kind) if self._recorded else otherwise

    def refuse_unreached(self) -> None:
        """Raises OtherStepError if recorded events are left that the loop did not reach."""
        if self._recorded:
            raise OtherStepError(self.path, self._recorded[0], expected=Ended.__struct_config__.tag)

    def _fold_tuner_events(self) -> None:
        while self._recorded and isinstance(self._recorded[0], _FOLDED_ONLY):
            self.history.fold(self._recorded.popleft())

    def append(self, event: E) -> E:
        """Writes one event and flushes it to disk; after an error (a full disk) the file is unchanged.

        Folds and returns the line as read back, so that a resumed run sees the same event.
        """
        line = msgspec.json.encode(msgspec.structs.replace(event, at=round(self._clock(), 3))) + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            _write_all(self._fd, line)
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, size)
            error.filename = error.filename or str(self.path)
            raise
        written = msgspec.json.decode(line, type=event.__class__)
        for history in (self.history,) if self.whole is self.history else (self.history, self.whole):
            history.fold(written)
        self._listener(written, self.whole)
        return written

    def close(self) -> None:
        os.close(self._fd)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _parse(path: Path, number: int, line: bytes) -> Event:
    try:
        event = _DECODER.decode(line)
        if isinstance(event, StudyStarted | Proposed):
            Recipe.model_validate(event.recipe)
    except (msgspec.MsgspecError, ValidationError) as error:
        why = _first(error) if isinstance(error, ValidationError) else error
        raise BadInputError(
            Problem(
                where=f"{path}, line {number}",
                what=f"not an event of a study: {why}",
                hint="the file was changed or damaged; restore it, or start a new study",
            )
        ) from None
    return event


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"recipe.{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _refuse_newer(path: Path, line: bytes) -> None:
    try:
        schema = msgspec.json.decode(line, type=_Header).schema
    except msgspec.MsgspecError:
        return  # not a header at all: parsing it says so with its line number
    if schema > SCHEMA:
        raise BadInputError(
            Problem(
                where=str(path),
                what=f"the study has schema {schema}, this version reads up to {SCHEMA}",
                hint="update moe-autotune, or start a new study",
            )
        )
