"""Whole-number arithmetic of `$(( … ))`, and what `(( … ))` and `let` assign."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

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
_NAME = re.compile(r"\$\{(\w+|#)\}|\$(\w+|#)|([A-Za-z_]\w*)")
_ASSIGNS = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.DOTALL)
_STEPS = re.compile(
    r"\s*(?:(?P<after>[A-Za-z_]\w*)\s*(?P<sign>\+\+|--)|(?P<first>\+\+|--)\s*(?P<before>[A-Za-z_]\w*))\s*"
)
_CHANGES = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)?(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """What an arithmetic command sets: a name and the expression of its new value."""

    name: str
    expression: str


def assignments(text: str) -> list[Assigned] | None:
    """What `N=N*2, X++` sets, in order; None where it is not that plain."""
    found = []
    for part in text.split(","):
        if match := _ASSIGNS.fullmatch(part):
            name, sign, value = match.groups()
            found.append(Assigned(name=name, expression=f"{name} {sign} ({value})" if sign else value))
        elif match := _STEPS.fullmatch(part):
            name = match["after"] or match["before"]
            found.append(Assigned(name=name, expression=f"{name} {(match['sign'] or match['first'])[0]} 1"))
        else:
            return None
    return None if any(_CHANGES.search(each.expression) for each in found) else found


def changed_names(text: str) -> list[str]:
    """Every name that an arithmetic command may set."""
    return [first or second for first, second in _CHANGES.findall(text)]


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
