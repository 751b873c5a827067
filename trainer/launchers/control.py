"""The folder of one start of ranks: what they and what starts them write."""

from __future__ import annotations

import uuid
from pathlib import Path

JOBS = "jobs"  # of an engine's folder: one start a burst, by the burst's name


def new_control(folder: Path) -> Path:
    """A folder of its own for one start."""
    control = folder.resolve() / uuid.uuid4().hex[:12]
    control.mkdir(parents=True, mode=0o700)  # the environment of the ranks is written there
    return control
