"""Whether a statement of a script succeeded, as lists, functions and `return` ask: None where only running it tells."""

from __future__ import annotations

import re

from trainer.command_line.shell.arithmetic import changed_names
from trainer.command_line.shell.conditions import holds, truth
from trainer.command_line.shell.state import Reading
from trainer.command_line.shell.syntax import Node, inside, text_of

YES = ("yes", "true", "1")
_ASKS = frozenset({"cmp", "diff", "egrep", "fgrep", "grep", "hash", "let", "pgrep", "type", "which"})
_ASSIGNS = ("variable_assignment", "variable_assignments")
_BETWEEN_OUTPUTS = re.compile(r"\d?>&\d")  # echo … >&2


def told(reading: Reading, node: Node) -> bool | None:
    """Of a statement that was read just now."""
    if (said := truth(node, reading.scope)) is not None:
        return said
    if not is_test(node) and not is_followed(reading, node):
        return True if _succeeds(node) else None
    if (asked := reading.scope.given.get(place(reading, reading.line(node)))) is not None:
        return asked.lower() in YES
    if is_followed(reading, node):
        return reading.succeeded
    if node.type == "negated_command" and is_followed(reading, node.named_children[0]):
        return None if reading.succeeded is None else not reading.succeeded
    return holds(node, reading.scope)


def is_test(node: Node) -> bool:
    text = text_of(node)
    is_arithmetic = text.startswith("((") and not changed_names(text)
    return node.type in ("test_command", "negated_command") or is_arithmetic or text.startswith("test ")


def calls(reading: Reading, node: Node) -> bool:
    """Whether a command is one of the script's own functions."""
    return node.type == "command" and name_of(node) in reading.functions


def is_followed(reading: Reading, node: Node) -> bool:
    """Whether reading it tells how it ends: a function of the script, or a shell of its own; X=$(…) ends as it."""
    takes = node.type in _ASSIGNS and bool(inside(node, "command_substitution"))
    return node.type == "subshell" or calls(reading, node) or (takes and not reading.assumed)


def asks(node: Node) -> bool:
    """Whether a command is run for its status: `nvidia-smi | grep -q H100`, `command -v nvcc`, `((N--))`."""
    if node.type == "compound_statement":
        return text_of(node).startswith("((")
    if node.type == "pipeline":
        return asks(node.named_children[-1])
    if node.type == "redirected_statement":
        body = node.child_by_field_name("body")
        return body is not None and asks(body)
    return node.type == "command" and (name_of(node) in _ASKS or text_of(node).lower().startswith("command -v "))


def place(reading: Reading, line: int) -> str:
    """What a test is decided by: if@3, or if@env.sh:3 in a file that the script reads."""
    return f"if@{reading.scope.file}:{line}" if reading.scope.file else f"if@{line}"


def _succeeds(node: Node) -> bool:
    """What cannot fail: echo, and what sets variables; `X=$(false)` fails, `local X=$(false)` does not."""
    if node.type == "redirected_statement":
        body, redirects = node.child_by_field_name("body"), node.children_by_field_name("redirect")
        return body is not None and _succeeds(body) and all(_BETWEEN_OUTPUTS.fullmatch(text_of(r)) for r in redirects)
    if node.type == "declaration_command":
        return any(child.type == "variable_assignment" for child in node.named_children)
    if node.type in _ASSIGNS:
        return not inside(node, "command_substitution")
    return node.type == "command" and name_of(node) == "echo" and not inside(node, "file_redirect")


def name_of(command: Node) -> str:
    """What a command runs; empty for any other node."""
    name = command.child_by_field_name("name") if command.type == "command" else None
    return "" if name is None else text_of(name)
