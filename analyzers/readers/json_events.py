"""Chrome-trace JSON in pieces: typed events batch by batch, from plain or gzipped files of any size.

A trace is cut between two events every few megabytes and each piece is decoded as a small trace of its own, so
memory does not grow with the file, and a file that ends in the middle gives everything up to its last whole event.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from analyzers.diagnosis import Dropped

PIECE_BYTES = 4 << 20
TAIL_BYTES = 1 << 14
DAMAGED = "the file is damaged there"
CUT_FILE = "the file is cut short there"
CUT_GZIP = "the gzip stream is cut short"
CUT_SHORT = frozenset({CUT_FILE, CUT_GZIP})  # reasons for a loss that say the end of the trace is missing
UNDECODABLE_BYTES = 4 * PIECE_BYTES  # a piece that will not decode even with its successors is damaged inside
GZIP_MAGIC = b"\x1f\x8b"
GZIP_WINDOW = 31  # zlib's code for gzip with the largest window
PADDING = b"\0"  # may follow a gzip member
EVENTS_OPENING = b'{"traceEvents":['
BETWEEN = b" \t\r\n,"
_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*(?=\{)")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')


class Arguments(msgspec.Struct, gc=False):
    """The arguments that mean something to us; everything else is skipped while decoding."""

    correlation: int | None = None
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


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Arguments | None = None


class ProcessGroup(msgspec.Struct):
    pg_desc: str = ""
    pg_size: int = 0


class DistributedInfo(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None
    pg_config: list[ProcessGroup] = []


class Document(msgspec.Struct):
    """A trace, or a piece of one: the header's fields may stand before or after the events."""

    traceEvents: list[Event] = []
    distributedInfo: DistributedInfo | None = None
    deviceProperties: list[dict[str, Any]] | None = None
    baseTimeNanoseconds: int | None = None


_DECODER = msgspec.json.Decoder(Document)


@dataclass
class JsonTrace:
    """What was read beside the events; complete once `batches` is exhausted."""

    path: Path
    info: DistributedInfo = field(default_factory=DistributedInfo)
    device_properties: list[dict[str, Any]] = field(default_factory=list)
    base_ns: int = 0
    dropped: list[Dropped] = field(default_factory=list)

    def batches(self) -> Iterator[list[Event]]:
        """All events that can be read, in the file's order.

        Raises:
            OSError: the file cannot be opened.
        """
        with self.path.open("rb") as file:
            gzipped = file.read(2) == GZIP_MAGIC
            file.seek(0)
            yield from self._pieces(self._gunzip(file) if gzipped else iter(partial(file.read, PIECE_BYTES), b""))

    def _pieces(self, chunks: Iterator[bytes]) -> Iterator[list[Event]]:
        opening, rest = b"", b""
        started = False
        for data in chunks:
            rest += data
            if not started:
                started, opening, rest = _open(rest)
                if not started:
                    continue
            cut = _last_boundary(rest)
            document = self._decode(opening + rest[:cut] + b"]}") if cut else None
            if document is None and len(rest) < UNDECODABLE_BYTES:
                continue
            yield document.traceEvents if document else self._salvage(opening + rest[:cut], DAMAGED)
            opening, rest = EVENTS_OPENING, rest[cut:].lstrip(BETWEEN)
        yield from self._last_piece(opening + rest)

    def _gunzip(self, file: IO[bytes]) -> Iterator[bytes]:
        """What can be decompressed, a piece at a time; gzip.GzipFile gives nothing of a read that meets the end."""
        decoder = zlib.decompressobj(wbits=GZIP_WINDOW)
        try:
            while data := file.read(PIECE_BYTES):
                while data:
                    if decoder.eof:  # another member follows
                        decoder = zlib.decompressobj(wbits=GZIP_WINDOW)
                    yield decoder.decompress(data, PIECE_BYTES)
                    data = decoder.unconsumed_tail or decoder.unused_data.lstrip(PADDING)
            if not decoder.eof:
                self._lose("compressed data", 1, CUT_GZIP)
        except zlib.error as error:
            self._lose("compressed data", 1, f"the gzip stream is damaged ({error})")

    def _last_piece(self, text: bytes) -> Iterator[list[Event]]:
        """The end of the file, with the header's fields that follow the events; or what is whole of it."""
        document = self._decode(text) or self._decode(text + b"}")
        if document is not None:
            yield document.traceEvents
            return
        yield self._salvage(text, DAMAGED if text.rstrip().endswith((b"}", b"]")) else CUT_FILE)

    def _decode(self, text: bytes) -> Document | None:
        try:
            document: Document | None = _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            document = _decode_leniently(text)
        if document is not None:
            self.info = document.distributedInfo or self.info
            self.device_properties = document.deviceProperties or self.device_properties
            self.base_ns = document.baseTimeNanoseconds or self.base_ns
        return document

    def _salvage(self, text: bytes, why: str) -> list[Event]:
        """Every event that is whole, one by one; the rest is counted as lost, with the reason `why`."""
        opened = _EVENTS_KEY.search(text)
        if opened is None:
            self._lose("events", 1, "no list of events could be found")
            return []
        events: list[Event] = []
        lost = 0
        pieces = _BETWEEN_EVENTS.split(text[opened.end() :].rstrip(BETWEEN))
        # the split took each event's closing brace, except the last one's: after that one the file may go on,
        # or be cut anywhere
        endings = [b"}]}"] * (len(pieces) - 1) + [b"]}"]
        for one, ending in zip(pieces, endings, strict=True):
            whole = self._decode(EVENTS_OPENING + one + ending) or self._decode(EVENTS_OPENING + one)
            events += whole.traceEvents if whole else []
            lost += whole is None
        if lost:
            self._lose("events", lost, why)
        return events

    def _lose(self, what: str, count: int, why: str) -> None:
        self.dropped.append(Dropped(what=what, count=count, why=why))


def _open(text: bytes) -> tuple[bool, bytes, bytes]:
    """Split at the start of the events: (found, what stands before, the rest)."""
    if text.lstrip()[:1] == b"[":  # a bare list of events is a Chrome trace too
        return True, EVENTS_OPENING, text.lstrip()[1:]
    key = _EVENTS_KEY.search(text)
    return (True, text[: key.end()], text[key.end() :]) if key else (False, b"", text)


def _last_boundary(text: bytes) -> int:
    """Where the last event that is surely followed by another one ends; 0 if there is none."""
    for tail in (TAIL_BYTES, len(text)):
        boundaries = [found.start() for found in _BETWEEN_EVENTS.finditer(text, max(0, len(text) - tail))]
        if boundaries:
            return boundaries[-1] + 1
    return 0


def _decode_leniently(text: bytes) -> Document | None:
    """For JSON that is not quite: invalid UTF-8, raw control characters, NaN, numbers as text."""
    try:
        loose = json.loads(text.decode("utf-8", "replace"), strict=False)
        return msgspec.convert(loose, Document, strict=False)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None
