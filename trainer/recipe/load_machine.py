"""Loads a `MachineFile`, packaged or from a path, and the `Machine` that a simulation uses of it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from trainer.errors import BadInputError, Problem
from trainer.recipe.files import text_of
from trainer.recipe.machine import Machine
from trainer.recipe.machine_file import MachineFile
from trainer.recipe.source import nearest, parse_source
from trainer.recipe.validation import validated


@cache
def packaged_machines() -> tuple[str, ...]:
    """Returns the names of the machine files that come with the package."""
    found = (files("trainer.recipe") / "machines").iterdir()
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in found if entry.name.endswith(".yaml")))


def load_machine(name_or_file: str, *, folder: Path | None = None, where: str = "burst.machine") -> Machine:
    """Returns the part of `load_machine_file` that a simulation uses."""
    return load_machine_file(name_or_file, folder=folder, where=where).machine


def load_machine_file(name_or_file: str, *, folder: Path | None = None, where: str = "--machine") -> MachineFile:
    """Loads a packaged machine or a file; a relative path starts at `folder`, the recipe's folder.

    Raises BadInputError with every problem of the file; `where` is the key or option that names it.
    """
    if name_or_file in packaged_machines():
        packaged = files("trainer.recipe") / "machines" / f"{name_or_file}.yaml"
        return validated(MachineFile, parse_source(packaged.read_text(encoding="utf-8"), name=f"{name_or_file}.yaml"))
    path = (folder or Path()) / name_or_file
    if not path.exists():
        near = nearest(name_or_file, packaged_machines())
        meant = f"did you mean {near}? " if near else ""
        hint = f"{meant}there are {', '.join(packaged_machines())}; or name a YAML file"
        raise BadInputError(Problem(where=where, what=f"no machine {name_or_file!r}", hint=hint))
    text = text_of(path, where=f"{where} {path}", instead="a machine is a YAML file: see docs/machines.md")
    return validated(MachineFile, parse_source(text, name=str(path)))
