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
    ast.LShift: lambda left, right: left << min(right, 62),
    ast.RShift: operator.rshift,
    ast.Pow: lambda left, right: left ** min(right, 62),
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
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
    """The value of an expression; None where a name has none or the expression holds more than arithmetic and tests, as
    `--N`, which sets something."""
    unknown = False

    def number(match: re.Match[str]) -> str:
        nonlocal unknown
        value = value_of(match[1] or match[2] or match[3])
        unknown = unknown or value is None
        return f"({value})"

    filled = _NAME.sub(number, text)
    if unknown or changed_names(text) or "#" in filled or len(filled) > 1000:  # 10#08 has a base
        return None
    try:
        return _value(ast.parse(_in_python(filled.strip()), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def names_in(text: str) -> list[str]:
    """The variables that an expression reads."""
    found = (first or second or third for first, second, third in _NAME.findall(text))
    return list(dict.fromkeys(name for name in found if name.isidentifier()))


def _in_python(text: str) -> str:
    """C's `a ? b : c`, && || ! in Python's words; one ternary inside another only where brackets set it apart."""
    text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
    depth, question = 0, None
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "?" and depth == 0 and question is None:
            question = index
        elif letter == ":" and depth == 0 and question is not None:
            test, yes, no = text[:question], text[question + 1 : index], text[index + 1 :]
            return f"({_in_python(yes)}) if ({test.strip()}) else ({_in_python(no)})"
    return text.strip()


def _value(node: ast.AST) -> int:
    """ValueError for anything that is not integer arithmetic."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return int(not _value(node.operand))
    if isinstance(node, ast.IfExp):
        return _value(node.body if _value(node.test) else node.orelse)
    if isinstance(node, ast.BoolOp):
        together = all if isinstance(node.op, ast.And) else any
        return int(together(_value(each) for each in node.values))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPERATORS:
        return OPERATORS[type(node.ops[0])](_value(node.left), _value(node.comparators[0]))
    raise ValueError("not integer arithmetic")
