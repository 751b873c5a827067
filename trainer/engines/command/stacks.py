"""Asks the ranks of a job that hangs where they are, before they are ended."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from trainer.launchers.mailbox import STACKS
from trainer.launchers.processes import Process, marked, send

_WRITING_S = 1.0
_PY_SPY_S = 20.0  # for one process


def ask_for_stacks(ranks_folder: Path, log: Path) -> None:
    """Ranks of this machine that carry our sitecustomize write them to their own stderr; of others py-spy tells, where
    it is installed, into `log`."""
    asked = 0
    for process, environment in list(marked()):
        rank = environment.get("RANK")
        if rank is None or environment.get("MOE_AUTOTUNE_OUT") != str(ranks_folder):
            continue
        pid_file = ranks_folder / f"rank{rank}.pid"
        if not pid_file.exists():
            _py_spy(process, rank, log)
        elif pid_file.read_text() == str(process.pid):
            send(process, STACKS)
            asked += 1
    if asked:
        time.sleep(_WRITING_S)


def _py_spy(process: Process, rank: str, log: Path) -> None:
    tool = shutil.which("py-spy")
    if tool is None:
        return
    try:
        found = subprocess.run(
            [tool, "dump", "--pid", str(process.pid)], capture_output=True, text=True, timeout=_PY_SPY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    with log.open("a") as file:
        file.write(f"rank {rank}\n{found.stdout}\n")
