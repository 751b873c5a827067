"""Command substitutions that only take a path apart: scripts find their own folder by them. Nothing is run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

_SILENT = r"(?:\s*(?:&>|[12]?>)\s*(?:/dev/null|&1))*"
_PATH = rf"\s+(?:--\s+)?(?P<path>.+?){_SILENT}\s*"
_FOLDER = re.compile(rf"\$\(\s*cd{_PATH}(?:&&|;)\s*pwd(?:\s+-P)?{_SILENT}\s*\)", re.DOTALL)
_OF_ONE = re.compile(rf"\$\(\s*(?P<tool>dirname|basename|realpath|readlink\s+-[fe]){_PATH}\)", re.DOTALL)
_TOOLS: dict[str, Callable[[str], str]] = {
    "dirname": lambda path: posixpath.dirname(path) or ".",
    "basename": posixpath.basename,
    "realpath": posixpath.normpath,
    "readlink": posixpath.normpath,
}


def path_of(text: str, known: Callable[[str], str | None]) -> str | None:
    """The path that a substitution gives; None for any other command, and where its word is not `known`."""
    if match := _FOLDER.fullmatch(text):
        path = known(match["path"])
        return None if path is None else posixpath.normpath(path)
    if match := _OF_ONE.fullmatch(text):
        path = known(match["path"])
        return None if path is None else _TOOLS[match["tool"].split()[0]](path)
    return None
