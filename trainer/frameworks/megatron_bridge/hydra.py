"""Values in the override grammar of Hydra 1.3, and objects as Bridge's own configuration files write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def literal(value: Any) -> str:
    """A value as Hydra's override grammar reads it; text with other letters than names have is quoted."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{literal(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(literal, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _text(value) if isinstance(value, str) else str(value)


def named(target: str) -> dict[str, Any]:
    """A Python object by its name, for example a member of an enum: Bridge would keep plain text as text."""
    return {"_target_": target, "_call_": False}


def _text(value: str) -> str:
    bare = value.replace("_", "").replace(".", "")
    if bare.isalnum() and not _reads_as_another_type(value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _reads_as_another_type(text: str) -> bool:
    """Words that Hydra takes for a number, a truth value or nothing."""
    try:
        float(text)
    except ValueError:
        return text.lower() in ("null", "true", "false")
    return True
