"""Every argument of Megatron-LM's parser; reads an argument list as that parser does.

`arguments.csv` has one row per flag: the name that it sets (`dest`), how many words it takes (0, 1, 3, + or *), their
type, and the default, which often differs from a recipe's. The rows come from building the parsers of core_v0.16.1 and
main d98e8a64; `default_0_16_1` is set where the two differ, `versions` where only one knows the flag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainer.launch_scripts.argv import Words, split
from trainer.recipe.tables import read_table

_PATTERN = re.compile(r"[,\d\[\]()+*]+")
MAX_LAYERS = 10_000


@dataclass(frozen=True, kw_only=True)
class Argument:
    flag: str
    dest: str
    values: str
    kind: str  # true or false: the value of a switch; else int, float, text, pair or pattern
    default: Any

    def value(self, words: Sequence[str]) -> Any:
        """Returns the parsed value of these words.

        Raises ValueError if words are missing, too many for a switch or for one value, or not of the type; choices are
        not checked.
        """
        if self.values == "0":
            if words:
                raise ValueError(f"it takes no value: {' '.join(words)}")
            return self.kind == "true"
        if not words and self.values != "*":
            raise ValueError("its value is missing")
        if self.values == "1" and len(words) > 1:
            raise ValueError(f"it takes one value, not {' '.join(words)}")
        read = [KINDS[self.kind](word) for word in words]
        return read[0] if self.values == "1" else read


@dataclass(frozen=True, kw_only=True)
class Read:
    """A flag of an argument list as written. `argument`: None if Megatron-LM does not know the flag (a fork's own)."""

    words: Words
    argument: Argument | None = None
    refused: str = ""  # why the parser would refuse it


@dataclass(frozen=True, kw_only=True)
class ArgumentList:
    """A parsed argument list. `values` has every name of the parser, at its default if the list does not set it."""

    reads: tuple[Read, ...]
    values: Mapping[str, Any]

    @property
    def written(self) -> frozenset[str]:
        """Returns the names that the list sets."""
        return frozenset(read.argument.dest for read in self.reads if read.argument and not read.refused)


def read_arguments(argv: Sequence[str]) -> ArgumentList:
    """Reads a list as Megatron-LM's parser does: the last of two equal flags counts. Unknown flags are kept."""
    values = dict(defaults())
    reads: list[Read] = []
    for words in split(argv):
        argument = ARGUMENTS.get(words.flag or "")
        refused = ""
        if argument is not None:
            try:
                values[argument.dest] = argument.value(words.values)
            except ValueError as error:
                refused = str(error)
        reads.append(Read(words=words, argument=argument, refused=refused))
    return ArgumentList(reads=tuple(reads), values=values)


@cache
def defaults() -> Mapping[str, Any]:
    """Returns every name with its default."""
    return {argument.dest: argument.default for argument in reversed(ARGUMENTS.values())}


def pattern(text: str) -> int | tuple[int, ...]:
    """Parses a layer pattern: a number, or a Python list such as `([0]*3+[1]*58)`, which Megatron-LM evaluates.

    Here a small grammar is parsed: sums of lists, groups and repetitions. Raises ValueError for anything else.
    """
    plain = text.replace(" ", "")
    if re.fullmatch(r"-?\d+", plain):
        return int(plain)
    if not _PATTERN.fullmatch(plain):
        raise ValueError(f"{text!r} is not a layer pattern like [0]*3+[1]*58")
    found, end = _sum(plain, 0)
    if end != len(plain):
        raise ValueError(f"{text!r} is not a layer pattern like [0]*3+[1]*58")
    return tuple(found)


def _sum(text: str, at: int) -> tuple[list[int], int]:
    found, at = _product(text, at)
    while text[at : at + 1] == "+":
        more, at = _product(text, at + 1)
        found = found + more
    return found, at


def _product(text: str, at: int) -> tuple[list[int], int]:
    times = 1
    if before := re.compile(r"(\d+)\*").match(text, at):
        times, at = int(before[1]), before.end()
    found, at = _group(text, at)
    while after := re.compile(r"\*(\d+)").match(text, at):
        times, at = times * int(after[1]), after.end()
    if len(found) * times > MAX_LAYERS:
        raise ValueError(f"{text!r} names more layers than any model has")
    return found * times, at


def _group(text: str, at: int) -> tuple[list[int], int]:
    if text[at : at + 1] == "(":
        found, at = _sum(text, at + 1)
        if text[at : at + 1] != ")":
            raise ValueError(f"{text!r} is not a layer pattern: a bracket is not closed")
        return found, at + 1
    listed = re.compile(r"\[(\d+(?:,\d+)*),?\]").match(text, at)
    if listed is None:
        raise ValueError(f"{text!r} is not a layer pattern like [0]*3+[1]*58")
    return [int(word) for word in listed[1].split(",")], listed.end()


def _pair(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.strip("()").split(","))


KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "text": str, "pair": _pair, "pattern": pattern}


def _argument(row: dict[str, str]) -> Argument:
    return Argument(
        flag=row["flag"],
        dest=row["dest"],
        values=row["values"],
        kind=row["kind"],
        default=json.loads(row["default"]),
    )


ARGUMENTS: dict[str, Argument] = {
    row["flag"]: _argument(row) for row in read_table("arguments.csv", package="trainer.frameworks.megatron_lm")
}
