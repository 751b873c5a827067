"""Bash text as a syntax tree. The only file that knows the parser.

tree-sitter-bash is the grammar editors use: two small wheels, kept up to date, with arrays, arithmetic and
here-documents, which bashlex (last released in 2023) refuses; shlex knows words only.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import Any

Node = Any  # tree_sitter.Node
SHELLS = frozenset({"bash", "sh", "zsh"})  # programs that read such text
_LIKELY = re.compile(rb"=[^\n]*[ \t]\w+\+?=[^\n]*\n|\S\$\w")  # without which it makes no such mistake
_NAME = re.compile(rb"[A-Za-z_]\w*|\d|[@*#?$!]")
_LINE_END = re.compile(rb"[ \t]*(#[^\n]*)?\n")


@cache
def _parser() -> Any:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse(text: str) -> Node:
    """The root of the tree; what is no bash stands in it as ERROR nodes.

    Two mistakes of the grammar are mended in the text first: `A=1 B=2` alone on a line is taken for variables of the
    command on the next one, and `$A/$B/c` for two words.
    """
    source = text.encode()
    root = _parser().parse(source).root_node
    while _LIKELY.search(source) and (added := {**_ends_of_lines(root), **_names_cut_off(root, source)}):
        for place in sorted(added, reverse=True):
            source = source[:place] + added[place] + source[place:]
        root = _parser().parse(source).root_node
    return root


def _names_cut_off(root: Node, source: bytes) -> dict[int, bytes]:
    """Braces around a name whose `$` ends a word of the tree."""
    ends = (each.children[-1] for each in inside(root, "concatenation") if each.children[-1].type == "$")
    names = (match for end in ends if (match := _NAME.match(source, end.end_byte)))
    return {place: brace for match in names for place, brace in ((match.start(), b"{"), (match.end(), b"}"))}


def _ends_of_lines(root: Node) -> dict[int, bytes]:
    """A `;` where an assignment before a command is the last of its line."""
    return {
        child.end_byte: b";"
        for command in inside(root, "command")
        for child, following in pairwise(each for each in command.children if each.type != "comment")
        if child.type == "variable_assignment"
        and _LINE_END.match(root.text, child.end_byte - root.start_byte, following.end_byte - root.start_byte)
    }


def text_of(node: Node) -> str:
    text: bytes = node.text
    return text.decode()


def space_before(node: Node) -> str:
    """White space that the grammar takes for the beginning of an expansion, as in `" $X"`."""
    text = text_of(node)
    return text[: len(text) - len(text.lstrip())] if "expansion" in node.type or "substitution" in node.type else ""


def line_of(node: Node) -> int:
    """The line the node begins on, counted from 1."""
    row: int = node.start_point[0]
    return row + 1


def inside(node: Node, kind: str) -> list[Node]:
    """Every node of a kind below this one, in order."""
    found = [node] if node.type == kind else []
    return found + [each for child in node.named_children for each in inside(child, kind)]


def first_error(node: Node) -> Node | None:
    """The first place that could not be read; None where everything could."""
    if node.type == "ERROR" or node.is_missing:
        return node
    return next((found for child in node.children if child.has_error and (found := first_error(child))), None)
