"""Finds the bash expressions behind the differences between two recordings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SAME, EXPANDS, CALCULATED = "same", "expands", "calculated"
_SPECIAL = re.compile(r'([\\$`"])')


@dataclass(frozen=True, kw_only=True)
class Word:
    """One word of a command. If it `expands`, its text is inside double quotes of bash."""

    text: str
    kind: str

    def __str__(self) -> str:
        return self.text

    @property
    def expands(self) -> bool:
        return self.kind == EXPANDS


def expression(first: str, second: str, pairs: Sequence[tuple[str, str, str]]) -> Word:
    """Returns the word of which these are two values; CALCULATED, with the first value, if `pairs` do not give both.

    `pairs`: (value in the first, value in the second, the expression that gives them).
    """
    if first == second:
        return Word(text=first, kind=SAME)
    pieces: list[str] = []
    at = other = 0
    while at < len(first) or other < len(second):
        pair = next(
            (p for p in pairs if p[0] != p[1] and _stands(p[0], first, at) and _stands(p[1], second, other)), None
        )
        if pair is not None:
            at, other = at + len(pair[0]), other + len(pair[1])
            pieces.append(pair[2])
        elif first[at : at + 1] == second[other : other + 1]:
            if re.match(r"\w", first[at]) and pieces and re.fullmatch(r"\$[A-Z_]+", pieces[-1]):
                pieces[-1] = f"${{{pieces[-1][1:]}}}"  # braces, since the letter would be part of the variable's name
            pieces.append(_SPECIAL.sub(r"\\\1", first[at]))
            at, other = at + 1, other + 1
        else:
            return Word(text=first, kind=CALCULATED)
    return Word(text="".join(pieces), kind=EXPANDS)


def _stands(value: str, text: str, at: int) -> bool:
    """Returns whether the text has the value at this position; a number must not be part of a longer number."""
    if not text.startswith(value, at):
        return False
    around = text[at - 1 : at] * (at > 0) + text[at + len(value) : at + len(value) + 1]
    return not (value.isdigit() and re.search(r"\d", around))
