"""Reads the comment of each field of a class from its source: at the end of its line, or on the lines above it."""

from __future__ import annotations

import ast
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from typing import Any

OURS = ("autotune", "policies", "trainer", "analyzers")


def is_ours(kind: type[Any]) -> bool:
    return kind.__module__.partition(".")[0] in OURS


def remarks_of(kind: type[Any]) -> dict[str, str]:
    """Returns field → comment for the fields of the type, inherited ones included."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if is_ours(each):
            found |= _module(each.__module__).get(each.__name__, {})
    return found


@cache
def _module(name: str) -> dict[str, dict[str, str]]:
    """Returns class → field → comment for one module."""
    source = inspect.getsource(sys.modules[name])
    comments = dict(_comments(source))
    above = _above(source, comments)
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {each.name: dict(_remarks(each, comments, above)) for each in classes}


def _remarks(kind: ast.ClassDef, comments: dict[int, str], above: dict[int, str]) -> Iterator[tuple[str, str]]:
    for field in kind.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            remark = comments.get(field.end_lineno or field.lineno) or above.get(field.lineno)
            if remark:
                yield field.target.id, remark.replace("None", "null")


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def _above(source: str, comments: dict[int, str]) -> dict[int, str]:
    """Returns line → the comments on the lines directly above it."""
    alone = {number for number, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("#")}
    found: dict[int, str] = {}
    for number in sorted(alone):
        found[number + 1] = " ".join(filter(None, (found.pop(number, ""), comments[number])))
    return found
