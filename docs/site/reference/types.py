"""Describes Python types in words, for the fields of a recipe."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin, get_type_hints

PLAIN = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "NoneType": "null"}


def type_words(hint: Any) -> str:
    """Returns `list of number`, `text or null`, `text → number`; a class of this project by its name."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(part) for part in parts)
    if origin in (list, tuple):
        return "list of " + ", ".join(dict.fromkeys(type_words(part) for part in parts if part is not Ellipsis))
    if origin is dict:
        return f"{type_words(parts[0])} → {type_words(parts[1])}"
    if parts:  # the values of a Literal
        return ", ".join(map(str, parts))
    name = str(getattr(hint, "__name__", hint))
    return PLAIN.get(name, "anything" if name == "Any" else name)


def hints_of(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)
