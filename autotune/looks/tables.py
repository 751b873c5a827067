"""Defines a table, which pages, Markdown and terminals render."""

from __future__ import annotations

from dataclasses import dataclass

NARROW_LETTERS = 62  # characters of a table row that fit a page of 600 px
GAP_LETTERS = 2  # characters between two columns


@dataclass(frozen=True, kw_only=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()  # indices of columns that hold figures
    caption: str = ""

    @property
    def is_wide(self) -> bool:
        """Returns True if the table is wider than a page of 600 px, which then shows its rows one below the other."""
        widths = (self._least_width(index) for index in range(len(self.columns)))
        return sum(widths) + GAP_LETTERS * len(self.columns) > NARROW_LETTERS

    def _least_width(self, index: int) -> int:
        """Returns the characters of a column's longest unbreakable text: a figure, or a word."""
        cells = [row[index] for row in self.rows]
        words = [
            word for text in (self.columns[index], *([] if index in self.numbers else cells)) for word in text.split()
        ]
        return max(map(len, [*words, *(cells if index in self.numbers else [])]), default=0)
