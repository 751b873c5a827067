"""Builtins of bash that set variables, move the arguments or end something."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from trainer.command_line.shell import texts
from trainer.command_line.shell.state import FunctionEnd, LoopEnd, Reading, ScriptEnd
from trainer.command_line.shell.statements import arithmetic
from trainer.command_line.shell.status import told
from trainer.command_line.shell.syntax import Node
from trainer.command_line.shell.words import Word, pieces_of

Words = tuple[Word, ...]


def _cd(reading: Reading, words: Words, node: Node) -> None:
    """Where the command is run: kept, where the folder is known."""
    if any(word.gaps for word in words):
        what = f"{' '.join(word.text for word in words)}: start moe-autotune there, the command is run where you are"
        reading.note(reading.line(node), what)
    else:
        reading.prepares(shlex.join(word.text for word in words))


def _exit(reading: Reading, words: Words, node: Node) -> None:
    if reading.sure:
        raise ScriptEnd(succeeds=_status(reading, words, node))
    reading.may_have_exited = True


def _return(reading: Reading, words: Words, node: Node) -> None:
    if reading.sure:
        raise FunctionEnd(succeeds=_status(reading, words, node))
    reading.may_have_ended = True


def _status(reading: Reading, words: Words, node: Node) -> bool | None:
    """Whether `exit` or `return` says success: by what it is given, or by the statement in front of it."""
    if len(words) > 1:
        return int(words[1].text) % 256 == 0 if words[1].text.isdigit() else None
    before = node.prev_named_sibling
    return None if before is None else told(reading, before)


def _break(reading: Reading, words: Words, node: Node) -> None:
    by = words[1].text if len(words) > 1 else "1"
    levels = min(int(by) if by.isdigit() else reading.loops, reading.loops)
    if reading.sure and by.isdigit() and levels:
        raise LoopEnd(goes_on=words[0].text == "continue", levels=levels)
    reading.unsure_loops = max(reading.unsure_loops, levels)


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


def _getopts(reading: Reading, words: Words, node: Node) -> None:
    """One that no loop is made of."""
    names = [word.text for word in words[2:3]]
    reading.open([*names, "OPTARG"], node, "filled by getopts, which is not run")


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
    "echo": texts.echo,
    "printf": texts.printf,
    "read": texts.read,
    "mapfile": texts.mapfile,
    "readarray": texts.mapfile,
    "getopts": _getopts,
    "let": _let,
    "true": _skip,
    "false": _skip,
    ":": _skip,
}
