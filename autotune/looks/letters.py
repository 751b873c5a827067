"""Letters for terminals and pipes whose encoding lacks ours: each has one that every encoding has."""

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
    """From here on, what a stream cannot encode is written in plain letters, a question mark where there is none."""
    codecs.register_error(HANDLER, _plain)
    for stream in streams:
        if hasattr(stream, "reconfigure"):  # what a test or a notebook put there may be no file
            stream.reconfigure(errors=HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(PLAIN.get(letter, "?") for letter in letters), error.end
