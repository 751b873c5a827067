"""Starts modules of these packages in other interpreters, wherever the user's shell is.

`python -m` alone puts the current folder first on sys.path: a repository's json.py, or its folder `trainer`, would run
in their place. The user's own command keeps its path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]  # the folder of the four packages


def module_command(module: str, *words: str, python: str = sys.executable) -> list[str]:
    """Returns the command that runs a module of ours without the current folder on sys.path (Python 3.11)."""
    return [python, "-P", "-m", module, *words]


def with_packages(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment with the folder of these packages first on PYTHONPATH, for an interpreter in which they
    may not be installed."""
    paths = [str(ROOT), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}
