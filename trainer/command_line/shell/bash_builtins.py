"""Builtins of bash that set variables, move the arguments or end something."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from trainer.command_line.shell.state import FunctionEnd, LoopEnd, Reading, ScriptEnd
from trainer.command_line.shell.statements import arithmetic
from trainer.command_line.shell.syntax import Node
from trainer.command_line.shell.words import Word, pieces_of

Words = tuple[Word, ...]


@dataclass(frozen=True, kw_only=True)
class Filling:
    """A builtin that fills variables: its options with a value, its words before the names, the name without any."""

    valued: frozenset[str]
    without: str
    first: int = 0


# bash(1) 5.2
FILLING = {
    "read": Filling(valued=frozenset({"-d", "-i", "-n", "-N", "-p", "-t", "-u"}), without="REPLY"),
    "mapfile": Filling(valued=frozenset({"-d", "-n", "-O", "-s", "-u", "-C", "-c"}), without="MAPFILE"),
    "readarray": Filling(valued=frozenset({"-d", "-n", "-O", "-s", "-u", "-C", "-c"}), without="MAPFILE"),
    "getopts": Filling(valued=frozenset(), without="OPTARG", first=1),
}


def _cd(reading: Reading, words: Words, node: Node) -> None:
    """Where the command is run: kept, where the folder is known."""
    if any(word.gaps for word in words):
        what = f"{' '.join(word.text for word in words)}: start moe-autotune there, the command is run where you are"
        reading.note(reading.line(node), what)
    else:
        reading.prepares(shlex.join(word.text for word in words))


def _exit(reading: Reading, words: Words, node: Node) -> None:
    if reading.sure:
        raise ScriptEnd


def _return(reading: Reading, words: Words, node: Node) -> None:
    if reading.sure:
        raise FunctionEnd


def _break(reading: Reading, words: Words, node: Node) -> None:
    if reading.sure:
        raise LoopEnd(goes_on=words[0].text == "continue")


def _shift(reading: Reading, words: Words, node: Node) -> None:
    by = words[1].text if len(words) > 1 else "1"
    if not by.isdigit():
        reading.note(reading.line(node), f"shift {by} was not followed: what $1 and $@ are is not known")
    elif not reading.sure:
        reading.note(reading.line(node), "a shift depends on an undecided test and was not followed")
    elif reading.scope.positional is None:
        reading.scope.shifted += int(by)
    elif int(by) <= len(reading.scope.positional):
        reading.scope.positional = reading.scope.positional[int(by) :]


def _set(reading: Reading, words: Words, node: Node) -> None:
    texts = [word.text for word in words]
    if "--" in texts:
        reading.scope.positional = tuple(pieces_of(word) for word in words[texts.index("--") + 1 :])
        return
    for index, text in enumerate(texts[1:], start=1):
        by_name = text[1:].endswith("o") and texts[index + 1 : index + 2] == ["allexport"]
        if text[:1] in "-+" and ("a" in text[1:] or by_name):
            reading.all_exported = text[0] == "-"


def _let(reading: Reading, words: Words, node: Node) -> None:
    for word in words[1:]:
        arithmetic(reading, word.text, node)


def _reads(reading: Reading, words: Words, node: Node) -> None:
    """read, mapfile and their like: the names they fill."""
    name = words[0].text
    names, skip = [], False
    for word in words[1:]:
        if skip or word.text.startswith("-"):
            skip = not skip and word.text in FILLING[name].valued
        else:
            names.append(word.text)
    reading.open(names[FILLING[name].first :] or [FILLING[name].without], node, f"filled by {name}, which is not run")


def _printf(reading: Reading, words: Words, node: Node) -> None:
    if len(words) > 2 and words[1].text == "-v":
        reading.open([words[2].text], node, "filled by printf, which is not run")


def _skip(reading: Reading, words: Words, node: Node) -> None:
    """A command that starts nothing."""


BUILTINS: dict[str, Callable[[Reading, Words, Node], None]] = {
    "cd": _cd,
    "pushd": _cd,
    "popd": _cd,
    "exit": _exit,
    "return": _return,
    "break": _break,
    "continue": _break,
    "shift": _shift,
    "set": _set,
    "echo": _skip,
    "printf": _printf,
    "let": _let,
    **dict.fromkeys(FILLING, _reads),
}
