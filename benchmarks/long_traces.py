"""Makes large traces from a real one: its events repeated at later times, or the same trace for many ranks.

Times, correlation ids and step numbers continue from one copy to the next as in a longer recording.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedWriter
from pathlib import Path

_EVENTS = re.compile(rb'"traceEvents":\s*\[')
_END = re.compile(rb"\}\s*\]")
_NUMBER = re.compile(rb'("ts":\s*|"correlation":\s*|ProfilerStep#)(\d+)(?:\.(\d+))?')
_RANK = re.compile(rb'("rank":\s*)\d+')
FAST = 1  # gzip level


def repeated(source: Path, targets: dict[Path, int]) -> None:
    """Writes copies of the trace to each target until it has this many bytes uncompressed; .gz targets are
    compressed."""
    text = gzip.decompress(source.read_bytes())
    opened = _EVENTS.search(text)
    closed = _END.search(text, text.rindex(b'"ph"'))
    if opened is None or closed is None:
        raise ValueError(f"{source} holds no list of events")
    head, body, tail = text[: opened.end()], text[opened.end() : closed.start() + 1], text[closed.start() + 1 :]
    with ExitStack() as stack:
        files = {path: stack.enter_context(_open(path)) for path in targets}
        for file in files.values():
            file.write(head)
        written = len(head)
        for k, copy in enumerate(_copies(body)):
            wanted = {path for path, size in targets.items() if written < size}
            if not wanted:
                break
            for path in wanted:
                files[path].write(b"," * (k > 0) + copy)
            written += len(copy) + (k > 0)
        for file in files.values():
            file.write(tail)


def ranks(source: Path, folder: Path, count: int) -> None:
    """Writes the trace once per rank: a gzip member with the rank, and one with all that follows."""
    text = gzip.decompress(source.read_bytes())
    found = _RANK.search(text)
    if found is None:
        raise ValueError(f"{source} names no rank")
    rest = gzip.compress(text[found.end() :], FAST)
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(count):
        head = text[: found.start()] + found[1] + str(rank).encode()
        (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(head) + rest)


def _open(path: Path) -> BufferedWriter | gzip.GzipFile:
    return gzip.open(path, "wb", compresslevel=FAST) if path.suffix == ".gz" else path.open("wb")


def _copies(body: bytes) -> Iterator[bytes]:
    """Yields the events, then the same events at later and later times, without end."""
    found = list(_NUMBER.finditer(body))
    edges = [0, *(end for number in found for end in number.span(2)), len(body)]
    between = [body[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    kinds = [number[1][:5] for number in found]
    values = [int(number[2]) for number in found]
    period = {}
    for kind in dict.fromkeys(kinds):
        own = [value for value, its in zip(values, kinds, strict=True) if its == kind and value > 0]
        period[kind] = max(own) - min(own) + 1
    steps = [period[kind] if value > 0 else 0 for value, kind in zip(values, kinds, strict=True)]
    parts = [b""] * (2 * len(between) - 1)
    parts[::2] = between
    while True:
        parts[1::2] = [b"%d" % value for value in values]
        yield b"".join(parts)
        values = [value + step for value, step in zip(values, steps, strict=True)]
