"""Writes a page where it was asked for."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import BadInputError, Problem


def write_page(file: Path, text: str) -> None:
    """Writes and says so. Raises BadInputError where the file cannot be written."""
    save_page(file, text)
    print(f"page: {file}")


def save_page(file: Path, text: str) -> None:
    """For commands that print much: a reader of their output who has seen enough must not cost the page.

    Raises BadInputError where the file cannot be written.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        what = f"the page cannot be written: {error.strerror}"
        raise BadInputError(Problem(where=str(file), what=what, hint="name a file in a folder that exists")) from None
