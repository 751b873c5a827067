"""Reads the files of an import, with a limit on their size."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import refused
from trainer.recipe.files import bytes_of

MAX_MIB = 64


def text_of(path: Path, *, known: str) -> str:
    """Returns the text of a file; `known` lists the accepted kinds. Raises BadInputError if it is missing, empty,
    larger than MAX_MIB or not text."""
    file = str(path)
    try:
        raw = bytes_of(path, where=file, instead=f"{known}; the start of a long log is enough", most_mib=MAX_MIB)
    except FileNotFoundError:
        raise refused(file, "no such file", known) from None
    text = raw.decode("utf-8", errors="replace")
    if not text.strip():
        raise refused(file, "the file is empty", known)
    if "\0" in text:
        raise refused(file, "it is not text", known)
    return text
