"""Reads a file, plain or gzipped, one chunk at a time, so that memory does not grow with the file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import IO

from analyzers.readers.losses import CUT_GZIP, DAMAGED_GZIP, Losses

CHUNK_BYTES = 1 << 18  # fits in a core's cache: chunks of 1 MB take an eighth more CPU time
COMPRESSED_BYTES = 1 << 14  # decompresses to about one chunk: traces shrink to a tenth or less
STEP_BYTES = 1 << 8  # at most this many compressed bytes before the damage are lost
GZIP_MAGIC = b"\x1f\x8b"
GZIP_WINDOW = 31  # zlib's code for gzip with the largest window
PADDING = b"\0"  # bytes that may follow a gzip member
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def beginning(head: bytes) -> bytes:
    """Returns the first bytes of a file's text, given the first bytes of the file; empty if they cannot be
    decompressed."""
    if head.startswith(GZIP_MAGIC):
        head = b"".join(_whole_part(zlib.decompressobj(wbits=GZIP_WINDOW), head))[:CHUNK_BYTES]
    return head.removeprefix(BYTE_ORDER_MARK)


def chunks(file: IO[bytes], losses: Losses) -> Iterator[bytes]:
    """Yields the file's text in chunks; adds to `losses` any part that cannot be decompressed."""
    gzipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    file.seek(0)
    yield from _gunzip(file, losses) if gzipped else iter(partial(file.read, CHUNK_BYTES), b"")


def _gunzip(file: IO[bytes], losses: Losses) -> Iterator[bytes]:
    """Yields all text that can be decompressed.

    gzip.GzipFile would return nothing from a read that reaches a truncated end.
    """
    decoder = zlib.decompressobj(wbits=GZIP_WINDOW)
    while data := file.read(COMPRESSED_BYTES):
        while data:
            if decoder.eof:  # another member follows
                decoder = zlib.decompressobj(wbits=GZIP_WINDOW)
            before = decoder.copy()
            try:
                yield decoder.decompress(data, CHUNK_BYTES)
            except zlib.error:
                losses.add("compressed data", 1, DAMAGED_GZIP, at_bytes=file.tell() - len(data))
                yield from _whole_part(before, data)
                return
            data = decoder.unconsumed_tail or decoder.unused_data.lstrip(PADDING)
    if not decoder.eof:
        losses.add("compressed data", 1, CUT_GZIP, at_bytes=file.tell())


def _whole_part(decoder: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yields the text up to the first data that cannot be decompressed."""
    with suppress(zlib.error):
        for at in range(0, len(data), STEP_BYTES):
            yield decoder.decompress(data[at : at + STEP_BYTES])
