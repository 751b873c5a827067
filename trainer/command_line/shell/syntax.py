"""Bash text as a syntax tree. The only file that knows the parser.

tree-sitter-bash is the grammar editors use: two small wheels, kept up to date, with arrays, arithmetic and
here-documents, which bashlex (last released in 2023) refuses; shlex knows words only.
"""

from __future__ import annotations

from functools import cache
from typing import Any

Node = Any  # tree_sitter.Node
SHELLS = frozenset({"bash", "sh", "zsh"})  # programs that read such text


@cache
def _parser() -> Any:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse(text: str) -> Node:
    """The root of the tree; what is no bash stands in it as ERROR nodes."""
    return _parser().parse(text.encode()).root_node


def text_of(node: Node) -> str:
    text: bytes = node.text
    return text.decode()


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
