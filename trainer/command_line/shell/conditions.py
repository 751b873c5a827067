"""Whether a test of a script holds: true, false, or None where only running it could tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from trainer.command_line.shell.expansion import Expansion
from trainer.command_line.shell.scope import Scope
from trainer.command_line.shell.syntax import Node, parse, text_of
from trainer.command_line.shell.words import word_of

COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda left, right: left == right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "-eq": lambda left, right: int(left) == int(right),
    "-ne": lambda left, right: int(left) != int(right),
    "-gt": lambda left, right: int(left) > int(right),
    "-ge": lambda left, right: int(left) >= int(right),
    "-lt": lambda left, right: int(left) < int(right),
    "-le": lambda left, right: int(left) <= int(right),
}
# Between [[ and ]] the right side is a pattern; what is quoted in it is text.
MATCHES: dict[str, Callable[[str, str], bool]] = {
    "=": fnmatchcase,
    "==": fnmatchcase,
    "!=": lambda left, right: not fnmatchcase(left, right),
    "=~": lambda left, right: _found(right, left),
}
MOST_STEPS = 10**7  # of a search, which may take so many where nothing fits
UNARY: dict[str, Callable[[str], bool]] = {"-z": lambda text: not text, "-n": bool}


def holds(node: Node, scope: Scope) -> bool | None:
    """The value of a condition: `[ … ]`, `[[ … ]]`, `(( … ))`, `test …`, joined by && || ! in any depth."""
    handler = _KINDS.get(node.type)
    return None if handler is None else handler(node, scope)


def _found(pattern: str, text: str) -> bool:
    """Whether the text has it; `re.error` where the search might not end in time, as of `(a+)+` in a long text."""
    repeats, groups = len(re.findall(r"[*+?{]", pattern)), len(re.findall(r"\)[*+{]", pattern))
    if max(2, len(text)) ** repeats > MOST_STEPS or (1 + groups) ** len(text) > MOST_STEPS:
        raise re.error("too many ways to search")
    return re.search(pattern, text) is not None


def _test(node: Node, scope: Scope) -> bool | None:
    text = text_of(node)
    if text.startswith("(("):
        value = Expansion(scope=scope).number(text.removeprefix("((").removesuffix("))"))
        return None if value is None else bool(value)
    if not text.startswith("["):
        return None
    inner = node.named_children
    return holds(inner[0], scope) if len(inner) == 1 else None


def _binary(node: Node, scope: Scope) -> bool | None:
    sign = text_of(node.child_by_field_name("operator"))
    left, right = node.child_by_field_name("left"), _word(node.child_by_field_name("right"), sign)
    if sign in ("&&", "||", "-a", "-o"):
        return _joined(sign in ("&&", "-a"), holds(left, scope), holds(right, scope))
    if sign == "=~" and left.type == "binary_expression":  # the parser takes `a && b =~ c` for `(a && b) =~ c`
        first, joint = left.child_by_field_name("left"), text_of(left.child_by_field_name("operator"))
        last = _compared(sign, left.child_by_field_name("right"), right, scope)
        return _joined(joint == "&&", holds(first, scope), last)
    return _compared(sign, left, right, scope)


def _word(node: Node, sign: str) -> Node:
    """The parser takes `--name` behind = for a test of its own."""
    if sign not in MATCHES or node.type != "unary_expression" or not text_of(node).startswith("-"):
        return node
    return parse("x=" + text_of(node)).named_children[0].child_by_field_name("value") or node


def _compared(sign: str, left: Node, right: Node, scope: Scope) -> bool | None:
    matches = sign in MATCHES and _between_double_brackets(left)
    compare = (MATCHES if matches else COMPARISONS).get(sign)
    text = _text(left, scope)
    other = Expansion(scope=scope).pattern(right, regex=sign == "=~") if matches else _text(right, scope)
    if compare is None or text is None or other is None:
        return None
    try:
        return compare(text, other)
    except (ValueError, re.error):  # -eq of what is no number
        return None


def _between_double_brackets(node: Node) -> bool:
    while node is not None and node.type != "test_command":
        node = node.parent
    return node is not None and text_of(node).startswith("[[")


def _joined(both: bool, left: bool | None, right: bool | None) -> bool | None:
    decisive = not both
    if decisive in (left, right):
        return decisive
    return None if None in (left, right) else both


def _unary(node: Node, scope: Scope) -> bool | None:
    sign, operand = text_of(node.children[0]), node.children[-1]
    if sign == "!":
        inner = holds(operand, scope)
        return None if inner is None else not inner
    value = _text(operand, scope)
    return UNARY[sign](value) if sign in UNARY and value is not None else None


def _list(node: Node, scope: Scope) -> bool | None:
    left, sign, right = node.children[0], text_of(node.children[1]), node.children[-1]
    return _joined(sign == "&&", holds(left, scope), holds(right, scope))


def _command(node: Node, scope: Scope) -> bool | None:
    name, _, rest = text_of(node).partition(" ")
    if (said := truth(node, scope)) is not None:
        return said
    return holds(parse(f"[ {rest} ]").named_children[0], scope) if name == "test" else None


def truth(node: Node, scope: Scope) -> bool | None:
    """Of `true`, `false` and `:`, also as what a variable holds: `if $DEBUG`."""
    alone = node.type == "command" and len(node.named_children) == 1
    return _TRUTHS.get(_text(node.named_children[0], scope) or "") if alone else None


_TRUTHS = {"true": True, ":": True, "false": False}


def _text(node: Node, scope: Scope) -> str | None:
    """A word; what is not set counts as empty, as it would if the script were started in an empty environment."""
    word = word_of(Expansion(scope=scope).value(node, empty=True))
    return None if word.gaps else word.text


def _plain(node: Node, scope: Scope) -> bool | None:
    value = _text(node, scope)
    return None if value is None else bool(value)


_KINDS: dict[str, Callable[[Node, Scope], bool | None]] = {
    "test_command": _test,
    "compound_statement": _test,
    "binary_expression": _binary,
    "unary_expression": _unary,
    "negated_command": _unary,
    "parenthesized_expression": lambda node, scope: holds(node.named_children[0], scope),
    "list": _list,
    "command": _command,
    "string": _plain,
    "simple_expansion": _plain,
    "expansion": _plain,
}
