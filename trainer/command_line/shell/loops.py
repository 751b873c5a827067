"""Loops whose turns are known: over words that are written there, and over the options of the script or a function."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.command_line.shell.conditions import holds
from trainer.command_line.shell.state import LoopEnd, Reading
from trainer.command_line.shell.statements import arithmetic
from trainer.command_line.shell.syntax import Node, inside, text_of
from trainer.command_line.shell.words import Pieces, Variable, Word, pieces_of, plain, word_of

ARGUMENTS = "@"  # the name that --set gives what the script itself is started with
MOST_TURNS = 500
MOST_SHOWN = 8  # options, in a question
_OWN = re.compile(r"\$(?:[#@*1]|\{[#@*1])|\bgetopts\b")
Turn = dict[str, Pieces]  # what a turn sets before its body is read; loops give None for a turn that is not known


def follow(reading: Reading, node: Node) -> bool:
    """Reads every turn of a loop; False, and nothing is changed, where they are not known."""
    kind = _TURNS.get(node.type)
    if kind is None or not reading.sure:
        return False
    held = _Held.of(reading)
    reading.loops += 1
    try:
        followed = _followed(reading, node, kind(reading, node))
    finally:
        reading.loops -= 1
    if followed and not reading.unsure_loops:
        return True
    reading.unsure_loops = max(0, reading.unsure_loops - 1)
    held.put_back(reading)
    return False


def _followed(reading: Reading, node: Node, turns: Iterator[Turn | None]) -> bool:
    for count, turn in enumerate(turns):
        if turn is None or count == MOST_TURNS:
            return False
        for name, value in turn.items():
            reading.fill(name, value, node=node)
        try:
            reading.statements([node.child_by_field_name("body")])
        except LoopEnd as end:
            if end.levels > 1:
                raise LoopEnd(goes_on=end.goes_on, levels=end.levels - 1) from None
            if not end.goes_on:
                return True
        if reading.unsure_loops:
            return False
    return True


@dataclass(frozen=True, kw_only=True)
class _Held:
    """Where the reading stood before a loop."""

    variables: dict[str, Variable]
    positional: tuple[Pieces, ...] | None
    given_text: Pieces | None
    shifted: int
    counts: tuple[int, int, int]

    @staticmethod
    def of(reading: Reading) -> _Held:
        scope = reading.scope
        return _Held(
            variables=dict(scope.variables),
            positional=scope.positional,
            given_text=reading.given_text,
            shifted=scope.shifted,
            counts=(len(reading.notes), len(reading.commands), len(reading.setup)),
        )

    def put_back(self, reading: Reading) -> None:
        reading.scope.variables, reading.scope.positional = self.variables, self.positional
        reading.scope.shifted, reading.given_text = self.shifted, self.given_text
        for found, count in zip((reading.notes, reading.commands, reading.setup), self.counts, strict=True):
            del found[count:]  # type: ignore[attr-defined]


def _of_words(reading: Reading, node: Node) -> Iterator[Turn | None]:
    """`for x in a b c`, and `for x` over the arguments."""
    name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    nodes = [child for child in node.named_children if child not in (name, body) and child.type != "comment"]
    if of_own_options(reading, node) and (not nodes or any(_OWN.search(text_of(each)) for each in nodes)):
        yield None
        return
    words: list[Word] = [word for each in nodes for word in reading.expansion.words(each)]
    words = words if nodes else [word_of(each) for each in reading.scope.positional or ()]
    for word in words:
        yield None if word.gaps or word.pattern else {text_of(name): pieces_of(word)}


def _of_test(reading: Reading, node: Node) -> Iterator[Turn | None]:
    """`while [[ $# -gt 0 ]]` and until, `while getopts`, and `while read`."""
    condition = node.child_by_field_name("condition")
    words = text_of(condition).split()
    if words[0] == "getopts" and len(words) > 2:
        yield from _of_getopts(reading, words[1].strip("\"'"), words[2])
        return
    if (reads := reading_command(condition)) is not None and condition.type != "list":
        yield from _of_lines(reading, reads)
        return
    if reads is not None and condition.children[1].type == "||":  # read -r line || [ -n "$line" ]
        yield from _of_lines(reading, reads, last=condition.children[-1])
        return
    ends = text_of(node).startswith("until")
    while (verdict := holds(condition, reading.scope)) is not ends:
        yield None if verdict is None else {}


def reading_command(condition: Node) -> Node | None:
    """The `read` that a loop goes on by."""
    first = condition.children[0] if condition.type == "list" else condition
    name = first.child_by_field_name("name") if first.type == "command" else None
    return first if name is not None and text_of(name) == "read" else None


def _of_lines(reading: Reading, reads: Node, last: Node | None = None) -> Iterator[Turn | None]:
    """A turn a line of what is given; a last one without an end only where a test says so."""
    while reading.given_text is not None:
        reading.statements([reads])
        if reading.given_text is None or reading.unread:
            break
        if not reading.at_end or (last is not None and holds(last, reading.scope)):
            yield {}
        elif last is None or holds(last, reading.scope) is False:
            return
    yield None


def _of_numbers(reading: Reading, node: Node) -> Iterator[Turn | None]:
    """`for ((i = 0; i < 3; i++))`."""
    parts = re.match(r"for\s*\(\(([^;]*);([^;]*);((?:[^()]|\([^()]*\))*)\)\)", text_of(node))
    if parts is None:
        yield None
        return
    first, test, each = (part.strip() for part in parts.groups())
    if first:
        arithmetic(reading, first, node)
    while (verdict := reading.expansion.number(test) if test else 1) != 0:
        yield None if verdict is None else {}
        if each:
            arithmetic(reading, each, node)


def _of_getopts(reading: Reading, spec: str, name: str) -> Iterator[Turn | None]:
    if reading.scope.positional is None:
        yield None
        return
    words, at = [word_of(each).text for each in reading.scope.positional], 0
    while at < len(words) and re.match(r"-[^-]", words[at]):
        letters, at = words[at][1:], at + 1
        while letters:
            letter, letters = letters[0], letters[1:]
            takes = f"{letter}:" in spec
            value = letters or (words[at] if at < len(words) else "") if takes else ""
            if takes:
                at, letters = at + (not letters), ""
            found = letter if letter in spec.replace(":", "") else "?"
            yield {
                name: plain(found).values[0],
                "OPTARG": plain(value).values[0],
                "OPTIND": plain(str(at + 1)).values[0],
            }


_TURNS = {"for_statement": _of_words, "c_style_for_statement": _of_numbers, "while_statement": _of_test}


def of_own_options(reading: Reading, node: Node) -> bool:
    """Whether the loop reads what the script itself is started with, and that was not given."""
    return reading.scope.positional is None and _OWN.search(text_of(node)) is not None


def own_options(node: Node) -> str:
    """Why what such a loop sets is not known, with the options that it knows."""
    patterns = [text_of(each) for item in inside(node, "case_item") for each in item.children_by_field_name("value")]
    named = [pattern for pattern in dict.fromkeys(patterns) if pattern.strip("*\"'")]
    shown = " ".join(named[:MOST_SHOWN]) + (" …" if len(named) > MOST_SHOWN else "")
    return "the script reads it from its own options" + (f" ({shown})" if shown else "")
