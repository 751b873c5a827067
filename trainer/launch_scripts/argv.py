"""An argument list as words: each flag with the values that follow it, in order and without loss."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

_NEGATIVE = re.compile(r"-\d+$|-\d*\.\d+$")  # argparse takes these for values, not flags


@dataclass(frozen=True, kw_only=True)
class Words:
    """One flag and its values as written (`--flag a b` or `--flag=a`).

    `flag`: None for values before the first flag.
    """

    flag: str | None
    values: tuple[str, ...] = ()
    joined: bool = False  # written as --flag=value

    @property
    def argv(self) -> tuple[str, ...]:
        if self.flag is None:
            return self.values
        if self.joined:
            return (f"{self.flag}={self.values[0]}", *self.values[1:])
        return (self.flag, *self.values)


def split(argv: Iterable[str]) -> list[Words]:
    """Splits a list into words. A value belongs to the flag before it, whether or not that flag takes one."""
    found: list[Words] = []
    for word in argv:
        if _is_flag(word):
            flag, equals, value = word.partition("=")
            found.append(Words(flag=flag, values=(value,) if equals else (), joined=bool(equals)))
        elif not found:
            found.append(Words(flag=None, values=(word,)))
        else:
            last = found[-1]
            found[-1] = Words(flag=last.flag, values=(*last.values, word), joined=last.joined)
    return found


def join(words: Iterable[Words]) -> tuple[str, ...]:
    """Returns the argument list that was split into these words."""
    return tuple(word for each in words for word in each.argv)


def without(argv: Sequence[str], flags: Collection[str]) -> tuple[str, ...]:
    """Returns the list without these flags and their values."""
    return join(_kept(split(argv), flags))


def words_by_flag(argv: Sequence[str]) -> dict[str, str]:
    """Returns {flag: its words, quoted for a shell}; of equal flags the last one counts."""
    return {words.flag: shlex.join(words.argv) for words in split(argv) if words.flag is not None}


def _kept(words: Iterable[Words], flags: Collection[str]) -> Iterator[Words]:
    return (each for each in words if each.flag not in flags)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NEGATIVE.match(word)
