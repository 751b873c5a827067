"""A type in words: its fields, what each takes, and the remark that stands behind it in the source."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

PLAIN = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "NoneType": "null"}


def remarks_of(kind: type[Any]) -> dict[str, str]:
    """The comment on the line of each field, of the type's own and of what it inherits."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.partition(".")[0] in ("autotune", "policies", "trainer", "analyzers"):
            found |= _remarks(textwrap.dedent(inspect.getsource(each)))
    return found


def type_words(hint: Any) -> str:
    """`list of number`, `text or null`, `text → number`; a type of ours by its name."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(part) for part in parts)
    if origin in (list, tuple):
        return "list of " + ", ".join(dict.fromkeys(type_words(part) for part in parts if part is not Ellipsis))
    if origin is dict:
        return f"{type_words(parts[0])} → {type_words(parts[1])}"
    if parts:  # of a Literal
        return ", ".join(map(str, parts))
    name = str(getattr(hint, "__name__", hint))
    return PLAIN.get(name, "anything" if name == "Any" else name)


def hints_of(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _remarks(source: str) -> dict[str, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    said = {
        token.start[0]: token.string.lstrip("# ").replace("None", "null")
        for token in tokens
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0]
    fields = (node for node in getattr(body, "body", []) if isinstance(node, ast.AnnAssign))
    return {
        field.target.id: said[line]
        for field in fields
        for line in (field.end_lineno,)
        if isinstance(field.target, ast.Name) and line in said
    }
