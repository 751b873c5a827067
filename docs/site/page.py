"""A page of the site, and the Markdown that its makers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page. `path` is that of its HTML below the site's root; `group` is its part of the page list, and pages that
    are not `listed` are reached from their index page. `source` is the document it is made from, which its links are
    relative to."""

    path: str
    title: str
    markdown: str
    group: str
    listed: bool = True
    source: str = ""

    @property
    def up(self) -> str:
        """Returns the relative path from the page's folder to the root: empty, or `../`."""
        return "../" * self.path.count("/")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table; cells are Markdown, joined to one line."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def code(text: object) -> str:
    """Returns text as inline code, unless it is empty or contains a backtick."""
    said = " ".join(str(text).split())
    return f"`{said}`" if said and "`" not in said else said


def plain(text: str) -> str:
    """Escapes `*` and `<`, so that Markdown shows them."""
    return text.replace("*", "\\*").replace("<", "&lt;")


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Returns (name, text) as a table without a header; empty texts are left out."""
    return table(("", ""), [(f"**{name}**", text) for name, text in rows if text])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
