"""Values as text, in the words of a recipe."""

from __future__ import annotations

from typing import Any


def knob_value(value: Any) -> str:
    """A knob's value as YAML would write it on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(knob_value(item) for item in value) + "]"
    return str(value)
