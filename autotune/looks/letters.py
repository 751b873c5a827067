"""Replaces characters that the encoding of a terminal or pipe lacks."""

from __future__ import annotations

import codecs
from typing import TextIO

HANDLER = "moe-autotune"
PLAIN = {
    "→": "->", "←": "<-", "…": "...", "−": "-", "–": "-", "—": "-", "≤": "<=", "≥": ">=", "≈": "~",
    "×": "x", "·": "-", "±": "+/-", "µ": "u", "│": "|", "─": "-",
    "█": "#", "▓": "%", "▒": "=", "░": "-", "▚": "x", "▞": "o", "▤": "+", "▥": ":", "▦": "*",
}  # fmt: skip


def use_plain_letters(*streams: TextIO) -> None:
    """Makes the streams write a replacement for each character that they cannot encode, a question mark if there is
    none."""
    codecs.register_error(HANDLER, _plain)
    for stream in streams:
        if hasattr(stream, "reconfigure"):  # a test or a notebook may have replaced it
            stream.reconfigure(errors=HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(PLAIN.get(letter, "?") for letter in letters), error.end
