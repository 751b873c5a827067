"""What a page is: where it lies, its markdown, and where it stands in the list of pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Page:
    """`path` is that of its HTML below the site's root; `group` names the part of the list it stands in, and pages
    below a `listed` one are not listed themselves. `source` is the file it comes from, for its links."""

    path: str
    title: str
    markdown: str
    group: str
    listed: bool = True
    source: str = ""

    @property
    def up(self) -> str:
        """From its folder to the root: empty, or `../`."""
        return "../" * self.path.count("/")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in markdown; a cell is one line of text with markdown's own marks in it."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def code(text: object) -> str:
    """As code in a line: what the program itself says."""
    said = " ".join(str(text).split())
    return f"`{said}`" if said and "`" not in said else said


def plain(text: str) -> str:
    """Text of which the stars and angles are no marks."""
    return text.replace("*", "\\*").replace("<", "&lt;")


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """(name, text) as a table without a head line's words; empty texts are left out."""
    return table(("", ""), [(f"**{name}**", text) for name, text in rows if text])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
