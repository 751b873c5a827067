"""Collects, before a hanging job is ended, the stacks of its ranks and their collectives by torch's flight recorder.

`python -m trainer.engines.command.stacks <ranks' folder> <log folder> injected|bare` does so for the ranks of one
machine; it is run on every machine of the job.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from trainer.launchers import Processes
from trainer.launchers.mailbox import STACKS
from trainer.launchers.processes import Process, marked, send, status_of

_WRITING_S = 1.0
_PY_SPY_S = 20.0  # time limit of py-spy for one process
_ALL_S = 60.0  # time limit for all ranks of a machine


def ask_for_stacks(processes: Processes, ranks_folder: Path, log_folder: Path, *, injected: bool) -> None:
    """Collects the stacks of the job's ranks on every machine; see `stacks_here`."""
    how = "injected" if injected else "bare"
    processes.run_on_every_node(
        "trainer.engines.command.stacks", str(ranks_folder), str(log_folder), how, timeout_s=_ALL_S
    )


def stacks_here(ranks_folder: Path, log_folder: Path, *, injected: bool) -> None:
    """Collects the stacks of this machine's ranks.

    With the injected sitecustomize the ranks write their stacks to their own stderr and their collectives to a file;
    without it py-spy, if installed, writes the stacks into `log_folder`.
    """
    ranks = _ranks(ranks_folder)
    for rank, process in ranks.items():
        if injected:
            _ask_flight_recorder(process)
            send(process, STACKS)
        else:
            _py_spy(process, rank, log_folder / f"py-spy-rank{rank}.txt")
    if injected and ranks:
        time.sleep(_WRITING_S)


def _ask_flight_recorder(process: Process) -> None:
    """Wakes the thread that waits in the injected sitecustomize; it writes its file next to the rank's others."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ask:
        ask.sendto(b"?", f"\0moe-autotune-{process.pid}")


def _ranks(ranks_folder: Path) -> dict[str, Process]:
    """Returns the training process of each rank: the one that claimed it, else the first child of the program that
    started it."""
    of_burst = {
        process: environment["RANK"]
        for process, environment in marked()
        if "RANK" in environment and environment.get("MOE_AUTOTUNE_OUT") == str(ranks_folder)
    }
    pids = {process.pid for process in of_burst}
    found: dict[str, Process] = {}
    for process, rank in of_burst.items():
        status = status_of(process.pid)
        claimed = ranks_folder / f"rank{rank}.pid"
        trains = claimed.read_text() == str(process.pid) if claimed.exists() else status and status.parent not in pids
        if trains:
            found[rank] = process
    return found


def py_spy() -> str | None:
    """Returns the path of py-spy, in this Python's environment or on PATH; None if it is not installed."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def _py_spy(process: Process, rank: str, log: Path) -> None:
    tool = py_spy()
    if tool is None:
        return
    try:
        found = subprocess.run(
            [tool, "dump", "--pid", str(process.pid)], capture_output=True, text=True, timeout=_PY_SPY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    log.write_text(f"rank {rank}\n{found.stdout}\n")


if __name__ == "__main__":
    stacks_here(Path(sys.argv[1]), Path(sys.argv[2]), injected=sys.argv[3] == "injected")
