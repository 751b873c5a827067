"""The control folder of one start of ranks: files of the ranks and of what starts them."""

from __future__ import annotations

import uuid
from pathlib import Path

from trainer.launchers.nodes import folder
from trainer.secrets import mask_file

JOBS = "jobs"  # folder in an engine's folder: one start per burst, by the burst's name


def new_control(folder: Path) -> Path:
    """Creates and returns the control folder of a new start of ranks."""
    control = folder.resolve() / uuid.uuid4().hex[:12]
    control.mkdir(parents=True, mode=0o700)  # the environment of the ranks is written there
    return control


def without_secrets(control: Path) -> None:
    """Deletes `start.json`, which has the ranks' environment, and masks secrets in the logs of a start. Call it once
    all its processes have ended."""
    folder.start_path(control).unlink(missing_ok=True)
    for path in control.rglob("*.log"):
        mask_file(path)
