"""Reads the version of the Megatron-LM that a command starts, if its checkout can be read from here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path("megatron") / "core" / "package_info.py"
_NUMBER = re.compile(r"^(MAJOR|MINOR|PATCH)\s*=\s*(\d+)\s*$", re.MULTILINE)


def checkout_version(command: Sequence[str], setup: Sequence[str] = ()) -> str | None:
    """Returns the version of the Megatron-Core checkout that contains the command's program; None if none does.

    `setup`: the lines before the command, whose `cd` sets the folder.
    """
    program = next((Path(word) for word in command if word.endswith(".py")), None)
    if program is None:
        return None
    for folder in _folder(setup).joinpath(program).resolve().parents[:3]:
        if (folder / PACKAGE).is_file():
            found = dict(_NUMBER.findall((folder / PACKAGE).read_text(errors="replace")))
            return ".".join(found[part] for part in ("MAJOR", "MINOR", "PATCH")) if len(found) == 3 else None
    return None


def _folder(setup: Sequence[str]) -> Path:
    found = Path()
    for line in setup:
        if line.startswith(("cd ", "pushd ")):
            found /= shlex.split(line)[-1]
    return found
