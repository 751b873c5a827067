"""What the literals of a script say once their quotes and backslashes are taken off, by the parser's kind of node."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

_TWICE_QUOTED = re.compile(r'\\(["\\$`\n])')
_ESCAPED = re.compile(r"\\(.|\n)", re.DOTALL)


def unescaped(text: str) -> str:
    return _TWICE_QUOTED.sub(lambda match: "" if match[1] == "\n" else match[1], text)


def _bare(text: str) -> str:
    return _ESCAPED.sub(lambda match: "" if match[1] == "\n" else match[1], text)


def _ansi(text: str) -> str:
    return codecs.decode(text[2:-1].encode("latin-1", "backslashreplace"), "unicode_escape")


LITERAL: dict[str, Callable[[str], str]] = {
    "word": _bare,
    "number": str,
    "variable_name": str,
    "special_variable_name": str,
    "test_operator": str,
    "regex": str,
    "extglob_pattern": str,
    "raw_string": lambda text: text[1:-1],
    "ansi_c_string": _ansi,
}
QUOTED = frozenset({"raw_string", "ansi_c_string"})
