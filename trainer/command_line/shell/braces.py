"""`{a,b}` and `{1..4}` outside quotes: the words that one word of a script stands for, before anything else of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

MOST = 1000  # words of one: more are nobody's
MOST_LETTERS = 2000
_SKIPPED = re.compile(r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*"|\$\{[^}]*\}|\$\([^)]*\)|`[^`]*`""", re.DOTALL)
_SEQUENCE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")


def alternatives(text: str) -> list[str]:
    """The words as written, in bash's order; the word alone where it holds no braces to expand."""
    if len(text) > MOST_LETTERS:
        return [text]
    for begin in _at(text, "{"):
        end = _closing(text, begin)
        choices = _choices(text[begin + 1 : end]) if end is not None else None
        if choices and end is not None:
            tails = alternatives(text[end + 1 :])
            found = [
                text[:begin] + each + tail for choice in choices for each in alternatives(choice) for tail in tails
            ]
            return found if len(found) <= MOST else [text]
    return [text]


def _choices(inner: str) -> list[str] | None:
    if match := _SEQUENCE.fullmatch(inner):
        first, last, step = int(match[1]), int(match[2]), abs(int(match[3] or 1)) or 1
        by = step if last >= first else -step
        padded = any(re.match(r"-?0\d", end) for end in match.group(1, 2))  # {01..10}
        width = max(map(len, match.group(1, 2))) if padded else 0
        return [f"{each:0{width}d}" for each in range(first, last + (1 if by > 0 else -1), by)][:MOST]
    cuts = [place for place in _at(inner, ",") if _depth(inner, place) == 0]
    if not cuts:
        return None
    edges = [-1, *cuts, len(inner)]
    return [inner[left + 1 : right] for left, right in pairwise(edges)]


def _at(text: str, sign: str) -> Iterator[int]:
    """Where a sign stands outside quotes and expansions."""
    place = 0
    while place < len(text):
        if skipped := _SKIPPED.match(text, place):
            place = skipped.end()
            continue
        if text[place] == sign:
            yield place
        place += 1


def _closing(text: str, begin: int) -> int | None:
    return next((place for place in _at(text, "}") if place > begin and _depth(text[begin:], place - begin) == 1), None)


def _depth(text: str, place: int) -> int:
    opened = sum(each < place for each in _at(text, "{"))
    return opened - sum(each < place for each in _at(text, "}"))
