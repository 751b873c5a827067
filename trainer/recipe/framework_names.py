"""Lists the values of `trainer.kind`: the folders of `trainer/frameworks`, which are not imported here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

DEFAULT = "megatron-lm"  # framework of a recipe that names no other
FOLDERS = [Path(__file__).parents[1] / "frameworks"]


@cache
def framework_names() -> tuple[str, ...]:
    """Returns the names in alphabetical order, such as `megatron-lm` for the folder `megatron_lm`."""
    files = (file for folder in FOLDERS for file in folder.glob("*/framework.py"))
    return tuple(sorted(file.parent.name.replace("_", "-") for file in files))
