"""Reads torch's memory snapshots: the pickle that torch.cuda.memory._dump_snapshot writes, one per rank.

A snapshot has only plain containers, numbers and text; the unpickler creates nothing else, so that no snapshot can run
code.
"""

from __future__ import annotations

import gc
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from analyzers.errors import TraceError
from analyzers.readers.naming import rank_in_name

PICKLE_MARK = b"\x80"
KEYS = (b"segments", b"device_traces")
HEAD_BYTES = 1 << 16
SUFFIXES = (".pickle", ".pkl")
# snapshot_3.pickle; longer numbers are times
_LAST_NUMBER = re.compile(r"[_\-.](\d{1,6})\.(?:pickle|pkl)$")


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceHistory:
    """One device: the allocator's actions in order, its segments at the end, and the annotations in between."""

    device: int
    entries: Sequence[Mapping[str, Any]]
    segments: Sequence[Mapping[str, Any]]
    annotations: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """A snapshot file. history: that of the device with most memory, None if the file is empty."""

    path: Path
    rank: int | None
    history: DeviceHistory | None
    devices: int  # number of devices that hold something


class _PlainUnpickler(pickle.Unpickler):
    """Refuses anything that a pickle asks to import, call or fetch."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and a snapshot has data only")

    def persistent_load(self, reference: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to other files")


def sniff(head: bytes) -> bool:
    return head.startswith(PICKLE_MARK) and any(key in head for key in KEYS)


def is_snapshot(path: Path) -> bool:
    if not path.is_file():  # opening a pipe would wait for its writer
        return False
    try:
        with path.open("rb") as file:
            return sniff(file.read(HEAD_BYTES))
    except OSError:
        return False


def read_snapshot(path: Path) -> Snapshot:
    """Returns the history in a snapshot.

    Raises:
        TraceError: the file is damaged, could run code, or holds something else.
    """
    document = _load(path)
    if not isinstance(document, dict) or not isinstance(document.get("segments", []), list):
        raise _no_snapshot(path, "is not a memory snapshot")
    histories = [history for history in _histories(document) if history.entries or history.segments]
    found = max(histories, key=lambda h: (_reserved(h), len(h.entries), -h.device), default=None)
    return Snapshot(path=path, rank=_rank(path), history=found, devices=len(histories))


def _load(path: Path) -> object:
    try:
        with path.open("rb") as file, _no_collections():
            return _PlainUnpickler(file).load()
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror}", hint="check the path and its permissions") from None
    except MemoryError:
        raise _no_snapshot(path, "does not fit in memory") from None
    except Exception as error:  # a damaged pickle can raise any exception
        raise _no_snapshot(path, f"is not a complete memory snapshot: {error}") from None


def _no_snapshot(path: Path, what: str) -> TraceError:
    return TraceError(path, what, hint="write one with torch.cuda.memory._dump_snapshot(), and let it finish")


@contextmanager
def _no_collections() -> Iterator[None]:
    """Disables garbage collection, which takes longer than creating the millions of dictionaries of a snapshot."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _histories(document: Mapping[str, Any]) -> Iterator[DeviceHistory]:
    traces = [_dicts(trace) for trace in document.get("device_traces") or [] if isinstance(trace, list)]
    segments, annotations = _dicts(document.get("segments")), _dicts(document.get("external_annotations"))
    for device in sorted({*range(len(traces)), *(number(s.get("device")) for s in segments)}):
        yield DeviceHistory(
            device=device,
            entries=traces[device] if device < len(traces) else [],
            segments=[s for s in segments if number(s.get("device")) == device],
            annotations=[a for a in annotations if number(a.get("device", device)) == device],
        )


def _dicts(values: object) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def number(value: object) -> int:
    """Returns a count or size; 0 if the value is not one."""
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0


def _reserved(history: DeviceHistory) -> int:
    return sum(number(segment.get("total_size")) for segment in history.segments)


def _rank(path: Path) -> int | None:
    named = rank_in_name(path)
    if named is not None:
        return named
    last = _LAST_NUMBER.search(path.name)
    return int(last[1]) if last else None
