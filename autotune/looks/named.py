"""Makes table rows that end in a name from a trace: short in the table, the full name as its tooltip."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.looks.kernel_names import printable, short_name

NAME_CHARACTERS = 110
FULL_NAME_CHARACTERS = 600


@dataclass(frozen=True, kw_only=True)
class NamedRow:
    figures: tuple[str, ...]
    name: str
    full: str


def named_row(figures: tuple[str, ...], name: str, *, after: str = "") -> NamedRow:
    """Returns a row of the figures and the name; `after` follows the short name."""
    full = printable(name)[:FULL_NAME_CHARACTERS]
    return NamedRow(figures=figures, name=short_name(name, NAME_CHARACTERS) + after, full=full)
