"""Reads the log of torchrun's agent."""

from __future__ import annotations

import re

_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")  # torch elastic multiprocessing/api.py


def reported_deaths(log: str) -> dict[int, int]:
    """Returns {local rank: exit code} for the ranks that the agent reports as failed; negative is a signal."""
    return {int(rank): int(code) for code, rank in _FAILED.findall(log)}
