"""The trace formats, one row each; a file's format is recognised by content, not by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from analyzers.errors import TraceError
from analyzers.readers import kineto, nsys
from analyzers.timeline import Timeline

HEAD_BYTES = 1 << 16
# first bytes of files that must be unpacked first, and the command; gzip is read as it is
PACKED = {b"PK\x03\x04": "unzip", b"\x28\xb5\x2f\xfd": "zstd -d", b"BZh": "bunzip2", b"\xfd7zXZ\x00": "unxz"}


@dataclass(frozen=True, kw_only=True)
class Format:
    """One trace format.

    sniff: true if the first bytes of a file are of this format; read: returns all timelines of a file.
    """

    name: str
    sniff: Callable[[bytes], bool]
    read: Callable[[Path], list[Timeline]]


FORMATS = (
    Format(name="nsys", sniff=nsys.sniff_sqlite, read=nsys.read_sqlite),
    Format(name="nsys-rep", sniff=nsys.sniff_report, read=nsys.read_report),
    Format(name="kineto", sniff=kineto.sniff, read=kineto.read),
)


def format_of(path: Path) -> Format | None:
    """Returns the format of a file, None if it is not a trace.

    Raises:
        TraceError: the file cannot be opened, is empty, or is compressed otherwise than with gzip.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise TraceError(path, "is a pipe or a device", hint="write it to a file first: traces are read twice")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror}", hint="check the path and its permissions") from None
    if not head:
        raise TraceError(path, "the file is empty", hint="the profiler wrote nothing: was the run ended early?")
    unpack = next((command for magic, command in PACKED.items() if head.startswith(magic)), None)
    if unpack is not None:
        raise TraceError(
            path, "is an archive, or compressed with something other than gzip", hint=f"{unpack} {path.name}"
        )
    return next((f for f in FORMATS if f.sniff(head)), None)


def read(path: Path) -> list[Timeline]:
    """Reads every timeline of a trace file: one per device of each process in it.

    Raises:
        TraceError: the file is not a trace, or holds no work to analyse.
    """
    found = format_of(path)
    if found is None:
        raise TraceError(
            path,
            "neither a Kineto trace nor an Nsight Systems export",
            hint="give torch.profiler's .json or .json.gz, or `nsys export --type sqlite` of a .nsys-rep",
        )
    return found.read(path)
