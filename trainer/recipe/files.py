"""Reads files that users name: regular files up to a size limit; others are refused before they are read."""

from __future__ import annotations

import stat
from pathlib import Path

from trainer.errors import BadInputError, refused


def bytes_of(path: Path, *, where: str, instead: str, most_mib: int = 1) -> bytes:
    """Returns the bytes of a regular file of at most `most_mib` MiB. `instead` is the error's hint.

    Raises BadInputError for a folder, a pipe, a device, a larger file or one that cannot be read; FileNotFoundError if
    there is none.
    """
    most = most_mib * 2**20
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise refused(where, "it is a directory", instead)
        if not stat.S_ISREG(mode):
            raise refused(where, "it is not a regular file", f"write it to a file and name that; {instead}")
        with path.open("rb") as file:  # files of /proc and similar have no size before they are read
            content = file.read(most + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        if isinstance(error, BadInputError):
            raise
        why = getattr(error, "strerror", None) or error
        raise refused(where, f"it cannot be read: {why}", "check the path and its permissions") from None
    if len(content) > most:
        raise refused(where, f"it is larger than {most_mib} MiB", instead)
    return content


def text_of(path: Path, *, where: str, instead: str, most_mib: int = 1) -> str:
    """Returns a file's UTF-8 text. Raises the errors of `bytes_of`, and BadInputError if the content is not text."""
    try:
        text = bytes_of(path, where=where, instead=instead, most_mib=most_mib).decode("utf-8")
    except UnicodeDecodeError:
        raise refused(where, "it is not text", instead) from None
    if "\0" in text:
        raise refused(where, "it is not text", instead)
    return text
