"""State of a submitted job, next to the files of its nodes: the process that follows the job writes `queue.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """State of a submitted job in Slurm's own words. `waited_s`: how long it has been, or was, pending, in seconds."""

    job: str
    state: str
    reason: str = ""
    nodes: str = ""
    waited_s: float = 0.0
    steps: list[str] = []  # states of its steps, where accounting tells


def queue_path(control: Path) -> Path:
    return control / "queue.json"


def slurm_log(control: Path) -> Path:
    """Returns the log of a submitted job: output of its script's srun and of Slurm."""
    return control / "slurm.log"
