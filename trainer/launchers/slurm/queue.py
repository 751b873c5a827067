"""Where a submitted job stands, beside the notes of its nodes: whoever follows it writes `queue.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Where a submitted job stands: Slurm's own words. `waited_s`: how long it has been, or was, pending."""

    job: str
    state: str
    reason: str = ""
    nodes: str = ""
    waited_s: float = 0.0
    steps: list[str] = []  # states of its steps, where accounting tells


def queue_path(control: Path) -> Path:
    return control / "queue.json"


def slurm_log(control: Path) -> Path:
    """What a submitted job itself writes: its script's srun and Slurm's own words."""
    return control / "slurm.log"
