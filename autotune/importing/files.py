"""Files that an import reads: regular ones of a sane size, and no more of them than a launch script has."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trainer.errors import refused
from trainer.recipe.files import bytes_of

MOST_MIB = 64
MOST_READS = 200  # of files beside a script; a script that reads one itself is read as often


def text_of(path: Path, *, known: str) -> str:
    """Returns the text of a file. BadInputError where it is not text. `known`: what it may be."""
    file = str(path)
    try:
        raw = bytes_of(path, where=file, instead=f"{known}; of a long log its start will do", most_mib=MOST_MIB)
    except FileNotFoundError:
        raise refused(file, "no such file", known) from None
    text = raw.decode("utf-8", errors="replace")
    if "\0" in text:
        raise refused(file, "it is not text", known)
    return text


@dataclass(kw_only=True)
class Beside:
    """Text of files that a script names, where they lie beside it. BadInputError where that has no end."""

    folder: Path
    left: int = MOST_READS
    texts: dict[str, str] = field(default_factory=dict)  # what was read, by its name

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
