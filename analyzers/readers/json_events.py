"""Decodes Chrome-trace JSON in batches of typed events, from plain or gzipped files of any size.

A trace is cut between two events every few hundred kilobytes, and each piece is decoded as a small trace of its own.
Memory therefore does not grow with the file, and a truncated file gives all events up to the last whole one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec

from analyzers.errors import TraceError
from analyzers.readers.chunks import BYTE_ORDER_MARK, chunks
from analyzers.readers.excerpts import KINDS as EXCERPT_KEYS
from analyzers.readers.json_repair import repaired
from analyzers.readers.losses import CUT_FILE, DAMAGED, HOLE, NO_EVENTS, Losses
from analyzers.timeline import NO_CORRELATION

TAIL_BYTES = 1 << 14
UNDECODABLE_BYTES = 16 << 20  # a larger piece that does not decode is damaged
HEADER_BYTES = 256 << 20  # a file without events in its first bytes, this many, has none
EVENTS_OPENING = b'{"traceEvents":['
EVENTS_ENDING = b"]}"
BETWEEN = b" \t\r\n,"
PADDING = b"\0 \t\r\n"  # bytes that may follow the end
ZEROS = b"\0" * 16  # longer than any run of zeros inside a name
_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*(?=\{)")
EVENTS_KEY = b'"traceEvents"'
_EVENTS_KEY = re.compile(EVENTS_KEY + rb"\s*:\s*\[")
KEY_SPAN = 64  # most bytes of the key with its colon, bracket and spaces
_BARE_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")


class Arguments(msgspec.Struct, gc=False):
    """The arguments of an event that the analysis uses; decoding skips all others."""

    correlation: int | None = None
    sequence: int | None = msgspec.field(default=NO_CORRELATION, name="Sequence number")
    device: int | None = None
    stream: int | str | None = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    group: str | None = msgspec.field(default=None, name="Process Group Description")
    group_name: str | int | None = msgspec.field(default=None, name="Process Group Name")
    group_ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    group_size: int | str | None = msgspec.field(default=None, name="Group size")
    sent: int | str | None = msgspec.field(default=None, name="In msg nelems")
    received: int | str | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    source: int | str | None = msgspec.field(default=None, name="Src Rank")
    destination: int | str | None = msgspec.field(default=None, name="Dst Rank")
    address: int | None = msgspec.field(default=None, name="Addr")
    change_bytes: int | None = msgspec.field(default=None, name="Bytes")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")
    device_type: int | None = msgspec.field(default=None, name="Device Type")
    memory_of: int | None = msgspec.field(default=None, name="Device Id")


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Arguments | None = None


Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]  # a number of ranks, or of nanoseconds since 1970


class ProcessGroup(msgspec.Struct):
    pg_desc: str = ""
    pg_size: Number | None = None


NOTHING = msgspec.Raw(b"null")


class DistributedInfo(msgspec.Struct):
    rank: Number | None = None
    world_size: Number | None = None
    pg_config: msgspec.Raw = NOTHING


class Document(msgspec.Struct):
    """A trace, or a piece of one.

    Fields of the header may come before or after the events. They are decoded one by one: events can be read even if
    one of these fields is malformed.
    """

    traceEvents: list[Event] = []
    distributedInfo: msgspec.Raw = NOTHING
    deviceProperties: msgspec.Raw = NOTHING
    baseTimeNanoseconds: msgspec.Raw = NOTHING
    microbatches: msgspec.Raw = NOTHING
    microbatches_traced: msgspec.Raw = NOTHING
    repeated: msgspec.Raw = NOTHING

    @property
    def has_header(self) -> bool:
        return any(bytes(getattr(self, key)) != bytes(NOTHING) for key in HEADER)


HEADER = tuple(key for key in Document.__struct_fields__ if key != "traceEvents")
REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Decoder(msgspec.Struct, frozen=True):
    """Decodes strictly, which is fastest.

    Text that is refused is decoded again: repaired, and accepting numbers written as text.
    """

    strict: msgspec.json.Decoder[Any]
    loose: msgspec.json.Decoder[Any]

    @staticmethod
    def of(kind: Any) -> _Decoder:
        return _Decoder(msgspec.json.Decoder(kind), msgspec.json.Decoder(kind, strict=False))

    def __call__(self, text: bytes | memoryview) -> Any:
        """Returns the decoded value, None if the text cannot be decoded."""
        with suppress(*REFUSED):
            return self.strict.decode(text)
        with suppress(*REFUSED):
            return self.loose.decode(repaired(bytes(text)))
        return None


_DOCUMENT, _EVENT = _Decoder.of(Document), _Decoder.of(Event)
_INFO, _GROUPS = _Decoder.of(DistributedInfo | None), _Decoder.of(list[ProcessGroup] | None)
_PROPERTIES, _WHOLE_NUMBER = _Decoder.of(list[Any] | None), _Decoder.of(Number | None)


@dataclass
class JsonTrace:
    """One trace file and the fields of its header, which are complete once `batches` is exhausted."""

    path: Path
    rank: int | None = None
    world_size: int | None = None
    group_sizes: dict[str, int] = field(default_factory=dict)  # number of ranks by the process group's description
    device_properties: list[Any] | None = None  # empty: the profiler found no device; None: not recorded
    base_ns: int = 0
    excerpt: dict[str, bytes] = field(default_factory=dict)  # undecoded text of the header's excerpt fields
    losses: Losses = field(default_factory=Losses)

    def batches(self) -> Iterator[list[Event]]:
        """Yields all events that can be read, in the file's order.

        Raises:
            OSError: the file cannot be read.
            TraceError: it holds more than one trace.
        """
        with self.path.open("rb") as file:
            texts = chunks(file, self.losses)
            rest, bare = self._header(texts)
            if rest is None:
                self.losses.add("events", 1, NO_EVENTS)
                return
            rest[:0] = EVENTS_OPENING
            min_bytes = 0.0  # text that did not decode is tried again when there is twice as much
            for text in chain((b"",), texts):
                searched = len(rest) - KEY_SPAN if text else 0
                rest += text
                self._refuse_second(rest, max(searched, len(EVENTS_OPENING)))
                if len(rest) < min_bytes:
                    continue
                end, following = _last_boundary(rest)
                events, with_header = _piece(rest, end) if end else (None, False)
                if with_header:  # the cut is after the events, in a list of the header: the rest belongs to it
                    min_bytes = float("inf")
                    continue
                if events is None and len(rest) < UNDECODABLE_BYTES:
                    min_bytes = 2 * len(rest)
                    continue
                if events is None:
                    end, following = (end, following) if end else (len(rest), len(rest))
                    events = self._whole_ones(_BETWEEN_EVENTS.split(bytes(rest[len(EVENTS_OPENING) : end - 1])))
                self._look_for_holes(rest, end)
                yield events
                rest[:following] = EVENTS_OPENING
                min_bytes = 0.0
            yield self._last_piece(bytes(rest[len(EVENTS_OPENING) :]), bare=bare)

    def _refuse_second(self, text: bytearray, start: int) -> None:
        """Raises TraceError if a second list of events begins in the text after `start`."""
        at = text.find(EVENTS_KEY, start)  # far faster than the pattern
        if at >= 0 and _EVENTS_KEY.match(text, at):
            raise TraceError(self.path, "holds more than one trace", hint="write each to a file of its own")

    def _header(self, texts: Iterator[bytes]) -> tuple[bytearray | None, bool]:
        """Reads up to the first event.

        Returns the text read of the events (None if the file has none), and whether the file is a bare list of events,
        which is a Chrome trace too.
        """
        rest = bytearray()
        for text in texts:
            searched = max(0, len(rest) - KEY_SPAN)
            rest += text
            bare = _BARE_LIST.match(rest)
            found = bare or _EVENTS_KEY.search(rest, searched)
            if found is not None:
                if bare is None:
                    header = bytes(rest[: found.end()]).removeprefix(BYTE_ORDER_MARK)
                    self._note(_DOCUMENT(header + EVENTS_ENDING))
                del rest[: found.end()]
                return rest, bare is not None
            if len(rest) > HEADER_BYTES:
                break
        return None, False

    def _note(self, document: Document | None) -> None:
        """Keeps the fields of the header that this piece contains."""
        if document is None:
            return
        info = _INFO(bytes(document.distributedInfo))
        if info is not None:
            groups = _GROUPS(bytes(info.pg_config)) or ()
            self.rank, self.world_size = info.rank, info.world_size
            self.group_sizes = {group.pg_desc: group.pg_size for group in groups if group.pg_size is not None}
        if (properties := _PROPERTIES(bytes(document.deviceProperties))) is not None:
            self.device_properties = properties
        self.base_ns = _WHOLE_NUMBER(bytes(document.baseTimeNanoseconds)) or self.base_ns
        texts = {key: bytes(getattr(document, key)) for key in EXCERPT_KEYS}
        self.excerpt |= {key: text for key, text in texts.items() if text != bytes(NOTHING)}

    def _events(self, text: bytes) -> list[Event] | None:
        document = _DOCUMENT(text)
        self._note(document)
        return None if document is None else document.traceEvents

    def _last_piece(self, text: bytes, *, bare: bool) -> list[Event]:
        """Returns the last events of the file and keeps fields of the header after them; of a truncated file, only
        whole events."""
        text = text.rstrip(PADDING)
        self._look_for_holes(text, len(text))
        events = self._ended(text)
        if events is None:
            *before, last = _BETWEEN_EVENTS.split(text.rstrip(BETWEEN))
            events = self._whole_ones(before) + self._last_events(last, bare=bare)
        return events

    def _ended(self, text: bytes) -> list[Event] | None:
        """Returns the events of a list that ends correctly, else None; no brace follows a bare list."""
        events = self._events(EVENTS_OPENING + text)
        return self._events(EVENTS_OPENING + text + b"}") if events is None else events

    def _last_events(self, text: bytes, *, bare: bool) -> list[Event]:
        """Returns the event, if any, in the last text of the file; records a loss if the file is truncated."""
        ended = self._ended(text)
        if ended is not None:
            return ended
        event = _EVENT(text)
        if not bare or (event is None and text):
            at_bytes = self.path.stat().st_size
            self.losses.add("events" if event is None else "the end of the file", 1, CUT_FILE, at_bytes=at_bytes)
        return [] if event is None else [event]

    def _look_for_holes(self, text: bytes | bytearray, end: int) -> None:
        """Records a loss for bytes of zero, which a file system gives for lost pages: any number of events may be
        missing there."""
        first = text.find(0, 0, end)  # one byte is looked for much faster
        if first >= 0 and text.find(ZEROS, first, end) >= 0:
            self.losses.add("a stretch of events", 1, HOLE)

    def _whole_ones(self, texts: Sequence[bytes]) -> list[Event]:
        """Decodes texts of one event each, which lack the closing brace; counts undecodable ones as lost."""
        found = [_EVENT(text + b"}") for text in texts]
        events = [event for event in found if event is not None]
        self.losses.add("events", len(found) - len(events), DAMAGED)
        return events


def _piece(text: bytearray, end: int) -> tuple[list[Event] | None, bool]:
    """Returns the events up to `end` (None if they cannot be decoded), and whether fields of the header follow them.

    Writes the closing brackets into `text` while it decodes, to avoid a copy.
    """
    ending = slice(end, end + len(EVENTS_ENDING))
    following, text[ending] = text[ending], EVENTS_ENDING
    with memoryview(text) as whole, whole[: ending.stop] as events:
        found = _events_only(events)
    text[ending] = following
    return found


def _events_only(text: memoryview) -> tuple[list[Event] | None, bool]:
    document = _DOCUMENT(text)  # the decoded header keeps a view of `text` while it exists
    return (None, False) if document is None else (document.traceEvents, document.has_header)


def _last_boundary(text: bytearray) -> tuple[int, int]:
    """Returns the end of the last event that another event follows, and the start of that one; (0, 0) if there is
    none."""
    for tail in (TAIL_BYTES, len(text)):
        boundaries = [found.span() for found in _BETWEEN_EVENTS.finditer(text, max(0, len(text) - tail))]
        if boundaries:
            last, following = boundaries[-1]
            return last + 1, following
    return 0, 0
