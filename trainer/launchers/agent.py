"""Reader of the log of torchrun's agent."""

from __future__ import annotations

import re

_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")  # torch elastic multiprocessing/api.py


def reported_deaths(log: str) -> dict[int, int]:
    """Returns the exit code of each rank that the agent names, by rank; of one node, where the local rank is the
    rank."""
    return {int(rank): int(code) for code, rank in _FAILED.findall(log)}
