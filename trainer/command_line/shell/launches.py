"""Commands of a script: functions and builtins are followed, other shells read, and what is left would be started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from trainer.command_line.shell import nested
from trainer.command_line.shell.bash_builtins import BUILTINS, Words
from trainer.command_line.shell.branches import read_apart, read_body
from trainer.command_line.shell.preparing import prepares
from trainer.command_line.shell.remote import behind_ssh, is_apart
from trainer.command_line.shell.scope import Scope
from trainer.command_line.shell.script import Command
from trainer.command_line.shell.state import MOST_DEPTH, FunctionEnd, Handler, Reading
from trainer.command_line.shell.statements import assign
from trainer.command_line.shell.syntax import Node
from trainer.command_line.shell.texts import cat, input_of, seq
from trainer.command_line.shell.words import Pieces, Variable, Word, exported_word, pieces_of

Own = Mapping[str, Word]  # variables in front of a command, for it alone


def _command(reading: Reading, node: Node) -> None:
    own: dict[str, Word] = {}
    words: list[Word] = []
    given: Pieces | None = None
    for child in node.named_children:
        if child.type == "variable_assignment":
            local = Scope(given=reading.scope.given)
            name = assign(reading, child, into=local)
            if name and (value := local.get(name)):
                own[name] = exported_word(name, value.values[0], line=reading.line(child))
        elif child.type == "herestring_redirect":
            given = input_of(reading, child)
        elif "redirect" not in child.type:
            words += reading.expansion.words(child)
    held = reading.given_text
    reading.given_text = given or held
    run(reading, tuple(words), own, node)
    reading.given_text = held if given else reading.given_text


def run(reading: Reading, words: Words, own: Own, node: Node) -> None:
    """What a command does to the reading."""
    if not words:
        return
    name = words[0].text
    if name in reading.functions:
        with _beside(reading, own):
            _call(reading, words)
    elif prepares(words):
        reading.prepare(node)
    elif handler := {**BUILTINS, **_READERS}.get(name):
        with _beside(reading, own):
            handler(reading, words, node)
    else:
        _external(reading, words, own, node)


@contextmanager
def _beside(reading: Reading, own: Own) -> Iterator[None]:
    """`VAR=1 train`: what is set and exported while a function or a builtin runs."""
    held = {name: (reading.scope.variables.get(name), name in reading.exported) for name in own}
    for name, word in own.items():
        reading.scope.variables[name] = Variable(values=(pieces_of(word),))
        reading.exported[name] = None
    yield
    for name, (value, exported) in held.items():
        reading.scope.variables.pop(name, None)
        if value is not None:
            reading.scope.variables[name] = value
        if not exported:
            reading.exported.pop(name, None)


def _call(reading: Reading, words: Words) -> None:
    if reading.depth >= MOST_DEPTH:
        reading.succeeded = None
        return
    ended, reading.may_have_ended = reading.may_have_ended, False
    held, reading.scope.positional = reading.scope.positional, tuple(pieces_of(word) for word in words[1:])
    reading.depth += 1
    reading.hidden.append({})
    function = reading.functions[words[0].text]
    body = [each for each in function.named_children if each.type != "comment"]
    try:
        succeeded = (read_apart if function.type == "subshell" else read_body)(reading, body).known  # f() ( … )
    except FunctionEnd as end:
        succeeded = end.succeeds
    finally:
        reading.depth -= 1
        reading.scope.positional = held
        reading.scope.put_back(reading.hidden.pop())
    reading.succeeded = None if reading.may_have_ended else succeeded
    reading.may_have_ended = ended


def _exec(reading: Reading, words: Words, node: Node) -> None:
    run(reading, words[1:], {}, node)


def _external(reading: Reading, words: Words, own: Own, node: Node) -> None:
    if remote := behind_ssh(words):
        told = f"{words[0].text} starts it on other machines: give their number with --nodes N and --gpus-per-node N"
        reading.note(reading.line(node), told)
        text = " ".join(word.text for word in remote)
        inner = reading.inner(own, line=reading.line(node), remote=True)
        nested.read_in(inner, text, tuple(gap for word in remote for gap in word.gaps))
        return
    if reading.output is not None and (program := _PRINT.get(words[0].text)):
        program(reading, words, node)
        return
    if nested.read(reading, words, own, node):
        return
    line, apart = reading.line(node), is_apart(words)
    reading.commands.append(
        Command(
            line=line,
            words=(*reading.before, *words),
            env={**reading.environment(line), **own},
            sure=reading.sure,
            setup=() if apart else tuple(reading.setup),
            outside=(*reading.outside, *(reading.setup if apart else ())),
        )
    )


_PRINT = {"cat": cat, "seq": seq}
_READERS = {**nested.READERS, "exec": _exec}
LAUNCHES: dict[str, Handler] = {"command": _command, "redirected_statement": nested.redirected}
