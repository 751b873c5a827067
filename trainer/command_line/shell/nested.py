"""Texts and files that are scripts themselves: `bash -c TEXT`, `srun ./FILE`, here-documents, `source`, `eval`.

A file is one that lies beside the script, or one that the script writes itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from trainer.command_line.launchers import peel
from trainer.command_line.shell.bash_builtins import Words
from trainer.command_line.shell.remote import behind_ssh
from trainer.command_line.shell.script import headers_of, slurm_variables
from trainer.command_line.shell.state import MOST_DEPTH, FunctionEnd, Output, Reading, ScriptEnd, written_as
from trainer.command_line.shell.syntax import SHELLS, Node, inside, text_of
from trainer.command_line.shell.texts import input_of, is_outward
from trainer.command_line.shell.words import Gap, Word, pieces_of, plain

_SUBMITS = frozenset({"sbatch"})
_WRITES = frozenset({"cat", "tee"})


def read(reading: Reading, words: Words, own: Mapping[str, Word], node: Node) -> bool:
    """Whether the command starts a script, which is read then."""
    names = [word.text.rpartition("/")[2] for word in words]
    for index, name in enumerate(names[:-1]):
        if name in SHELLS:
            _shell(reading, words[:index], words[index + 1 :], own, node)
            return True
    submits = names[0] in _SUBMITS
    first = 1 if submits else next(iter(peel([word.text for word in words]).command), 0)
    for index in range(first, len(words) if submits else first + 1):
        if index < len(words) and _is_script(reading, words[index]) and "--recipe" not in names:
            _submitted(reading, words[:index], reading.text_beside(words[index].text) or "")
            _shell(reading, () if submits else words[:index], words[index:], own, node)
            return True
    return False


def read_in(inner: Reading, text: str, gaps: tuple[Gap, ...] = ()) -> None:
    """A text in a shell of its own."""
    if inner.depth > MOST_DEPTH:
        return
    for gap in gaps:  # they stand in the text as they were written, and are gaps again there
        if gap.has_own_name:
            inner.scope.variables.pop(gap.name, None)
    with suppress(ScriptEnd):
        inner.read(text)


def _is_script(reading: Reading, word: Word) -> bool:
    if word.text.startswith("-") or word.text.endswith((".py", ".yaml", ".json")):
        return False
    text = reading.text_beside(word.text) or ""
    return bool(text) and (re.match(r"#!.*sh\b", text) is not None or word.text.endswith((".sh", ".sbatch", ".slurm")))


def _submitted(reading: Reading, words: Words, text: str) -> None:
    """A job's own #SBATCH lines, the options that sbatch has before the script, and what Slurm sets of them in it."""
    if words and words[0].text.rpartition("/")[2] in _SUBMITS:
        reading.headers = (*headers_of(text), *(word.text for word in words[1:]))
        for name, value in slurm_variables(reading.headers).items():
            reading.scope.variables[name] = plain(value)


def _shell(reading: Reading, before: Words, rest: Words, own: Mapping[str, Word], node: Node) -> None:
    """`bash -c TEXT`, or `bash FILE`."""
    options = 0
    while options < len(rest) and rest[options].text.startswith("-"):
        options += 1
    is_text = any("c" in word.text and not word.text.startswith("--") for word in rest[:options])
    if options == len(rest):
        return
    first, arguments = rest[options], rest[options + 1 :]
    text = first.text if is_text else reading.text_beside(first.text)
    if text is None:
        what = f"{first.text} is started and was not read: it does not lie beside the script"
        reading.note(reading.line(node), what)
        return
    inner = reading.inner(own, before=before, line=reading.line(node) if is_text else 1)
    inner.scope.positional = tuple(pieces_of(word) for word in arguments[1 if is_text else 0 :])
    inner.scope.file = reading.scope.file if is_text else first.text
    inner.scope.path = arguments[0].text if is_text and arguments and not arguments[0].gaps else None
    read_in(inner, text, first.gaps)


def redirected(reading: Reading, node: Node) -> None:
    """What a shell, ssh or sbatch reads from it is a script, what cat writes with it a file; else it is data."""
    body = node.child_by_field_name("body")
    document = next((each for each in inside(node, "heredoc_body")), None)
    words: Words = ()
    if body is not None and body.type == "command":
        words = tuple(word for child in body.named_children for word in reading.expansion.words(child))
    if document is None or not words or (reading.output is not None and words[0].text in _WRITES):
        _with_input(reading, node, body)
        return
    start = next((text_of(each) for each in inside(node, "heredoc_start")), "")
    text = text_of(document) if re.search(r"[\"'\\]", start) else re.sub(r"\\([$`\\])", r"\1", text_of(document))
    if words[0].text in _WRITES:
        _write(reading, words, node, text)
        return
    before = _before_a_shell(words)
    if before is None:
        _with_input(reading, node, body)
        return
    _submitted(reading, words, text)
    remote = words[0].text == "ssh"
    read_in(reading.inner({}, before=() if remote else before, line=reading.line(document), remote=remote), text)


def _with_input(reading: Reading, node: Node, body: Node | None) -> None:
    """The command itself, with what it is given to read; what it prints elsewhere is not looked at."""
    redirects = node.children_by_field_name("redirect") or [
        each for each in node.named_children if each.type.endswith("_redirect")
    ]
    inputs = [each for each in redirects if not text_of(each).lstrip("0123456789&").startswith(">")]
    held = (reading.given_text, reading.output)
    for each in inputs:
        reading.given_text = input_of(reading, each)
    if any(is_outward(each) for each in redirects) and reading.output is not None:
        reading.output = Output()
    reading.statements([body] if body is not None else [])
    reading.given_text, reading.output = held


def _before_a_shell(words: Words) -> Words | None:
    """What starts the shell that reads the document; None where none does."""
    names = [word.text.rpartition("/")[2] for word in words]
    if names[0] in _SUBMITS:
        return ()
    at = next((index for index, name in enumerate(names) if name in SHELLS), None)
    if at is not None and all(word.text.startswith("-") for word in words[at + 1 :]):
        return words[:at]
    return words[:1] if behind_ssh(words) == () and names[0] == "ssh" else None


def _write(reading: Reading, words: Words, node: Node, text: str) -> None:
    targets = inside(node, "file_redirect")
    names = [word for target in targets for child in target.named_children for word in reading.expansion.words(child)]
    for name in names or words[1:]:
        adds = any(">>" in text_of(target) for target in targets)
        file = written_as(name.text)
        reading.written[file] = (reading.written.get(file, "") if adds else "") + text


def _source(reading: Reading, words: Words, node: Node) -> None:
    name = words[1].text if len(words) > 1 else ""
    beside = name.rpartition("/")[2] if name and words[1].gaps else name  # $(dirname "$0")/env.sh
    text = reading.text_beside(beside) if name and reading.depth < MOST_DEPTH else None
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


READERS = {"source": _source, ".": _source, "eval": _eval}
