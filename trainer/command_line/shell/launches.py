"""Commands of a script: functions and builtins are followed, other shells read, and what is left would be started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from trainer.command_line.shell.bash_builtins import BUILTINS, Words
from trainer.command_line.shell.preparing import prepares
from trainer.command_line.shell.remote import behind_ssh
from trainer.command_line.shell.scope import Scope
from trainer.command_line.shell.script import Command, headers_of
from trainer.command_line.shell.state import MOST_DEPTH, FunctionEnd, Handler, Reading, ScriptEnd
from trainer.command_line.shell.statements import assign
from trainer.command_line.shell.syntax import Node, inside, text_of
from trainer.command_line.shell.words import Gap, Variable, Word, exported_word, pieces_of

SHELLS = frozenset({"bash", "sh", "zsh"})
Own = Mapping[str, Word]  # variables in front of a command, for it alone


def _command(reading: Reading, node: Node) -> None:
    own: dict[str, Word] = {}
    words: list[Word] = []
    for child in node.named_children:
        if child.type == "variable_assignment":
            local = Scope(given=reading.scope.given)
            name = assign(reading, child, into=local)
            if name and (value := local.get(name)):
                own[name] = exported_word(name, value.values[0], line=reading.line(child))
        elif "redirect" not in child.type:
            words += reading.scope.words(child)
    run(reading, tuple(words), own, node)


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
        return
    held, reading.scope.positional = reading.scope.positional, tuple(pieces_of(word) for word in words[1:])
    reading.depth += 1
    with suppress(FunctionEnd):
        reading.statements(reading.functions[words[0].text].named_children)
    reading.depth -= 1
    reading.scope.positional = held


def _external(reading: Reading, words: Words, own: Own, node: Node) -> None:
    if remote := behind_ssh(words):
        told = f"{words[0].text} starts it on other machines: a recipe says how many, --nodes N and --gpus-per-node N"
        reading.note(reading.line(node), told)
        text = " ".join(word.text for word in remote)
        inner = reading.inner({name: pieces_of(word) for name, word in own.items()}, line=reading.line(node))
        _read(inner, text, tuple(gap for word in remote for gap in word.gaps))
        return
    for index, word in enumerate(words):
        if word.text.rpartition("/")[2] in SHELLS and index + 1 < len(words):
            _shell(reading, words[:index], words[index + 1 :], own, node)
            return
    line = reading.line(node)
    reading.commands.append(
        Command(
            line=line,
            words=(*reading.before, *words),
            env={**reading.environment(line), **own},
            sure=reading.sure,
            setup=tuple(reading.setup),
        )
    )


# --- texts and files that are scripts themselves ----------------------------------------------------------
def _shell(reading: Reading, before: Words, rest: Words, own: Own, node: Node) -> None:
    """`bash -c TEXT`, or `bash FILE` of a file that lies beside the script."""
    options = 0
    while options < len(rest) and rest[options].text.startswith("-"):
        options += 1
    is_text = any("c" in word.text and not word.text.startswith("--") for word in rest[:options])
    if options == len(rest):
        return
    first, arguments = rest[options], rest[options + 1 :]
    text = first.text if is_text else reading.beside(first.text)
    if text is None:
        what = f"{first.text} is started and was not read: it does not lie beside the script"
        reading.note(reading.line(node), what)
        return
    held = {name: pieces_of(word) for name, word in own.items()}
    inner = reading.inner(held, before=before, line=reading.line(node) if is_text else 1)
    inner.scope.positional = tuple(pieces_of(word) for word in arguments[1 if is_text else 0 :])
    inner.scope.file = reading.scope.file if is_text else first.text
    inner.scope.path = arguments[0].text if is_text and arguments and not arguments[0].gaps else None
    _read(inner, text, first.gaps)


def _read(inner: Reading, text: str, gaps: tuple[Gap, ...] = ()) -> None:
    if inner.depth > MOST_DEPTH:
        return
    for gap in gaps:  # they stand in the text as they were written, and are gaps again there
        if gap.has_own_name:
            inner.scope.variables.pop(gap.name, None)
    with suppress(ScriptEnd):
        inner.read(text)


def _redirected(reading: Reading, node: Node) -> None:
    """A here-document of a shell or of sbatch is a script; of any other command it is data."""
    body = node.child_by_field_name("body")
    if body is not None:
        reading.statements([body])
    document = next((each for each in inside(node, "heredoc_body")), None)
    name = text_of(body).split()[0] if body is not None and body.type == "command" else ""
    if document is None or name not in SHELLS | {"sbatch"}:
        return
    text = text_of(document).replace("\\$", "$")
    reading.headers = headers_of(text)
    _read(reading.inner({}, line=reading.line(document)), text)


def _source(reading: Reading, words: Words, node: Node) -> None:
    name = words[1].text if len(words) > 1 else ""
    beside = name.rpartition("/")[2] if name and words[1].gaps else name  # $(dirname "$0")/env.sh
    text = reading.beside(beside) if name and reading.depth < MOST_DEPTH else None
    if text is None:
        reading.note(reading.line(node), f"source {name} was not read: what it sets is not known")
        reading.prepare(node)
        return
    outer, reading.scope.first_line = reading.scope.first_line, 1
    file, reading.scope.file = reading.scope.file, beside
    reading.depth += 1
    with suppress(ScriptEnd, FunctionEnd):
        reading.read(text)
    reading.depth -= 1
    reading.scope.first_line, reading.scope.file = outer, file


def _eval(reading: Reading, words: Words, node: Node) -> None:
    if reading.depth >= MOST_DEPTH:
        return
    outer, reading.scope.first_line = reading.scope.first_line, reading.line(node)
    reading.depth += 1
    reading.read(" ".join(word.text for word in words[1:]))
    reading.depth -= 1
    reading.scope.first_line = outer


def _exec(reading: Reading, words: Words, node: Node) -> None:
    run(reading, words[1:], {}, node)


_READERS = {"source": _source, ".": _source, "eval": _eval, "exec": _exec}
LAUNCHES: dict[str, Handler] = {"command": _command, "redirected_statement": _redirected}
