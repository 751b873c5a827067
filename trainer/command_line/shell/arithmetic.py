"""Whole-number arithmetic of `$(( … ))`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right) if abs(left) < 2**52 else left // right,
    ast.Mod: lambda left, right: left - right * int(left / right),
    ast.Gt: lambda left, right: int(left > right),
    ast.GtE: lambda left, right: int(left >= right),
    ast.Lt: lambda left, right: int(left < right),
    ast.LtE: lambda left, right: int(left <= right),
    ast.Eq: lambda left, right: int(left == right),
    ast.NotEq: lambda left, right: int(left != right),
}
_NAME = re.compile(r"\$\{(\w+)\}|\$(\w+)|([A-Za-z_]\w*)")


def calculate(text: str, value_of: Callable[[str], int | None]) -> int | None:
    """The value of an expression; None where a name has none or the expression holds more than + - * / % and tests."""
    unknown = False

    def number(match: re.Match[str]) -> str:
        nonlocal unknown
        value = value_of(match[1] or match[2] or match[3])
        unknown = unknown or value is None
        return f"({value})"

    filled = _NAME.sub(number, text)
    if unknown or len(filled) > 1000:
        return None
    try:
        return _value(ast.parse(filled.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.AST) -> int:
    """ValueError for anything that is no whole-number arithmetic."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPERATORS:
        return OPERATORS[type(node.ops[0])](_value(node.left), _value(node.comparators[0]))
    raise ValueError("no whole-number arithmetic")
