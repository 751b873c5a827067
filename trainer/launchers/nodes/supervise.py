"""The process between a tuner and what it started on other nodes. It outlives the tuner, so that nothing else does.

`python -m trainer.launchers.nodes.supervise <tuner's pid> <control folder> <last command> <stays> <command…>` runs the
command (srun, ssh, or a program that submits a job) until it ends, until it is asked to end it (TERM) or until the
tuner is gone. It renews the lease without which the keepers on the nodes end. At the end it asks them to end, writes
the command's exit code, then runs the last command, if any, given as one word for a shell (scancel). With `stays`, if
only the tuner is gone, everything is left running for the next tuner to find. If this process itself is killed, the
kernel kills the command, and the lease runs out.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.interpreter import module_command
from trainer.launchers.mailbox import agent_log, write_whole
from trainer.launchers.nodes import folder
from trainer.launchers.processes import end_all
from trainer.launchers.supervisor import AWAITED, LOOK_S, adopt_orphans, exit_path, family, reap, start, wait

POLITE_S = 8.0  # time for the keepers to end everything on their nodes, and for the command to notice
_RENEW_S = 1.0
_LAST_COMMAND_S = 80.0
STAYS, GOES = "stays", "goes"


def main(owner: int, control: Path, last_command: list[str], stays: bool, command: list[str]) -> None:
    adopt_orphans()
    if os.getppid() != owner:
        return
    lease = Lease(control)
    lease.renew()
    agent = start(command)
    code = wait(agent, owner, lease.renew)
    if stays and os.getppid() != owner:
        end_all(family)
        return
    write_whole(folder.stop_path(control), b"")
    if code is None and folder.keeper_started_path(control, 0).exists():
        _let_end(agent)
    end_all(family)
    if code is not None:
        write_whole(exit_path(control), str(code).encode())
    if last_command:
        run_last(last_command)


def run_last(words: Sequence[str], *, limit_s: float = _LAST_COMMAND_S) -> None:
    """Runs the last command within a time limit, since programs of Slurm may hang."""
    try:
        subprocess.run(words, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        print(f"no end after {limit_s:g} s, given up: {shlex.join(words)}", flush=True)


def start_supervise(
    command: Sequence[str], *, control: Path, env: Mapping[str, str], last_command: Sequence[str], stays: bool
) -> subprocess.Popen[bytes]:
    """Starts `main` as a process of its own; its output and the command's go to the agent log of the control folder."""
    own = module_command("trainer.launchers.nodes.supervise", str(os.getpid()), str(control))
    with agent_log(control).open("ab") as log:
        return subprocess.Popen(
            [*own, shlex.join(last_command), STAYS if stays else GOES, *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for the tuner alone
        )


class Lease:
    """A file with a count that grows while this process lives."""

    def __init__(self, control: Path) -> None:
        self._path, self._count, self._renewed_at = folder.lease_path(control), 0, -_RENEW_S

    def renew(self) -> None:
        """Renews the lease, at most once per second.

        Ignores write errors, since a disk that is full for a while must not end the ranks.
        """
        if time.monotonic() - self._renewed_at < _RENEW_S:
            return
        self._renewed_at, self._count = time.monotonic(), self._count + 1
        try:
            write_whole(self._path, str(self._count).encode())
        except OSError as error:
            print(f"the lease cannot be renewed: {error}", flush=True)


def _let_end(agent: int) -> None:
    give_up = time.monotonic() + POLITE_S
    while agent not in reap() and time.monotonic() < give_up:
        signal.sigtimedwait(AWAITED, LOOK_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), shlex.split(sys.argv[3]), sys.argv[4] == STAYS, sys.argv[5:])
