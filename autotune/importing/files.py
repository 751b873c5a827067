"""Reads the files of an import, with limits on their size and number."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trainer.errors import refused
from trainer.recipe.files import bytes_of

MOST_MIB = 64
MOST_READS = 200  # a script that sources itself is stopped after so many reads


def text_of(path: Path, *, known: str) -> str:
    """Returns the text of a file; `known` lists the accepted kinds. Raises BadInputError if it is empty or not text."""
    file = str(path)
    try:
        raw = bytes_of(path, where=file, instead=f"{known}; the start of a long log is enough", most_mib=MOST_MIB)
    except FileNotFoundError:
        raise refused(file, "no such file", known) from None
    text = raw.decode("utf-8", errors="replace")
    if not text.strip():
        raise refused(file, "the file is empty", known)
    if "\0" in text:
        raise refused(file, "it is not text", known)
    return text


@dataclass(kw_only=True)
class ScriptFolder:
    """Reads small files in the folder of a script, by the names that the script uses.

    Raises BadInputError after MOST_READS of them.
    """

    folder: Path
    left: int = MOST_READS
    texts: dict[str, str] = field(default_factory=dict)  # name → text of the files read

    def __call__(self, name: str) -> str | None:
        path = self.folder / name
        try:
            near = path.resolve().is_relative_to(self.folder.resolve())
            small = near and path.is_file() and path.stat().st_size <= 2**20
            text = path.read_text(encoding="utf-8") if small else None
        except (OSError, ValueError):
            return None
        self.left -= text is not None
        if self.left < 0:
            raise refused(str(path), f"it is read more than {MOST_READS} times", "does a script source itself?")
        if text is not None:
            self.texts[name] = text
        return text
