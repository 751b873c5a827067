"""What `${NAME#…}`, `${NAME/…/…}`, `${NAME^^}` and `${NAME:1:2}` make of a variable's text."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase, translate

# the text of a word of the script, as a pattern or as it is; None while a part of it is not known
Known = Callable[[str], str | None]
_SIGN = re.compile(r"(##|#|%%|%|//|/|\^\^|\^|,,|,|:)(.*)", re.DOTALL)
_PARTS = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*'|\$\{[^}]*\}|\\.|[^/])*""", re.DOTALL)
_SLICE = re.compile(r"\s*(-?\d+)\s*(?::\s*(-?\d+)\s*)?")
_CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper,
    "^": lambda text: text[:1].upper() + text[1:],
    ",,": str.lower,
    ",": lambda text: text[:1].lower() + text[1:],
}


def transformed(text: str, behind: str, *, pattern: Known, word: Known) -> str | None:
    """The text after what stands behind the variable's name; None for what is not followed."""
    match = _SIGN.fullmatch(behind)
    if match is None:
        return None
    sign, rest = match.groups()
    if sign == ":":
        return _slice(text, rest)
    if sign in _CASES:
        return None if rest else _CASES[sign](text)
    if sign in ("/", "//"):
        return _replaced(text, rest, sign == "//", pattern, word)
    cut = pattern(rest)
    return None if cut is None else _without(text, cut, sign)


def _without(text: str, cut: str, sign: str) -> str:
    """# from the front, % from the back, twice for as much as fits."""
    lengths = range(len(text) + 1) if len(sign) == 1 else range(len(text), -1, -1)
    for length in lengths:
        part = text[:length] if sign[0] == "#" else text[len(text) - length :]
        if fnmatchcase(part, cut):
            return text[length:] if sign[0] == "#" else text[: len(text) - length]
    return text


def _replaced(text: str, rest: str, everywhere: bool, pattern: Known, word: Known) -> str | None:
    first = _PARTS.match(rest)
    find = first[0] if first else rest
    old, new = pattern(find), word(rest[len(find) + 1 :])
    if not old or new is None or old[0] in "#%":
        return None
    expression = re.compile(translate(old).removesuffix(r"\z").removesuffix(r"\Z"))
    return expression.sub(lambda _: new, text, count=0 if everywhere else 1)


def _slice(text: str, rest: str) -> str | None:
    match = _SLICE.fullmatch(rest)
    if match is None:
        return None
    start = int(match[1])
    if start < 0:
        start += len(text)
    length = int(match[2]) if match[2] else len(text)
    end = start + length if length >= 0 else len(text) + length
    return text[start:end] if start >= 0 else ""
