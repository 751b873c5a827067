"""Decodes the NCCL arguments of a Kineto event (torch 2.3 and later) into a Message: process group, collective, bytes.

A trace repeats a few different ones: events keep a code, and each Message is made once.
"""

from __future__ import annotations

import re
from collections.abc import Hashable

from analyzers.readers.json_events import Arguments
from analyzers.timeline import Message

_INTEGER = re.compile(r"\d+")
# torch's names of scalar types without their bits; the others contain them: BFloat16, Float8_e4m3fn, ...
BITS_BY_DTYPE = {
    "Byte": 8,
    "Char": 8,
    "Bool": 8,
    "Short": 16,
    "Half": 16,
    "Int": 32,
    "Float": 32,
    "Long": 64,
    "Double": 64,
}


def message_key(arguments: Arguments) -> Hashable:
    """Returns the arguments that distinguish one message from another."""
    ranks = arguments.group_ranks
    return (
        arguments.group_name,
        tuple(ranks) if isinstance(ranks, list) else ranks,
        arguments.collective,
        arguments.group_size,
        arguments.sent,
        arguments.received,
        arguments.dtype,
        arguments.source,
        arguments.destination,
    )


def message_of(key: Hashable) -> Message:
    assert isinstance(key, tuple)
    name, ranks, collective, size, sent, received, dtype, source, destination = key
    listed = ranks if isinstance(ranks, str) else ", ".join(map(str, ranks or ()))
    elements = max((n for n in (_number(sent), _number(received)) if n is not None), default=None)
    bits = _bits(dtype or "")
    return Message(
        group="" if name is None else f"{name} of ranks {listed.strip('[]')}",
        group_ranks=() if name is None else tuple(map(int, _INTEGER.findall(listed))),
        collective=collective or "",
        group_size=_number(size),
        dtype=dtype or "",
        size_bytes=None if elements is None or bits is None else elements * bits // 8,
        peers=None if source is None and destination is None else (_number(source), _number(destination)),
    )


def _bits(dtype: str) -> int | None:
    found = _INTEGER.search(dtype)
    return BITS_BY_DTYPE.get(dtype, int(found[0]) if found else None)


def _number(value: int | str | None) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None
