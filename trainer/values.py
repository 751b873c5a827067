"""Formats values of a recipe as text."""

from __future__ import annotations

from typing import Any


def knob_value(value: Any) -> str:
    """Returns a knob's value as YAML writes it on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(knob_value(item) for item in value) + "]"
    return str(value)


def as_reported(value: Any) -> Any:
    """Returns a list as the text that engines report, `a,b`; other values unchanged."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
