"""Writes values in the override grammar of Hydra 1.3, and objects as in Bridge's configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def literal(value: Any) -> str:
    """Returns a value in Hydra's override grammar; text is quoted unless it has only the characters of names."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{literal(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(literal, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _text(value) if isinstance(value, str) else str(value)


def named(target: str) -> dict[str, Any]:
    """Returns a Python object by its name, such as a member of an enum: Bridge would take plain text as text."""
    return {"_target_": target, "_call_": False}


def _text(value: str) -> str:
    bare = value.replace("_", "").replace(".", "")
    if bare.isalnum() and not _reads_as_another_type(value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _reads_as_another_type(text: str) -> bool:
    """Returns whether Hydra would read a word as a number, a boolean or null."""
    try:
        float(text)
    except ValueError:
        return text.lower() in ("null", "true", "false")
    return True
