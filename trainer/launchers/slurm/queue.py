"""The state of a submitted job, in `queue.json` next to the files of its nodes; the process that follows the job writes
it."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a submitted job in Slurm's own words. `waited_s`: how long it has been, or was, pending."""

    job: str
    state: str
    reason: str = ""
    nodes: str = ""
    waited_s: float = 0.0
    steps: list[str] = []  # states of its steps, if accounting is on


def queue_path(control: Path) -> Path:
    return control / "queue.json"


def slurm_log(control: Path) -> Path:
    """Returns the log of a submitted job: the output of its script's srun and of Slurm."""
    return control / "slurm.log"
