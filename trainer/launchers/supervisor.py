"""The process between a tuner and its ranks that outlives both, so that nothing else does.

`python -m trainer.launchers.supervisor <tuner's pid> <control folder> <command…>` runs the command (torchrun's agent)
and waits until it ends, until it is asked to end it (SIGTERM), or until the tuner is gone. Then it kills all
descendants: the kernel gives it orphans, even those that left their session or cleared their environment. If this
process itself is killed, the kernel kills the agent, and with the agent the ranks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from trainer.launchers.mailbox import die_with_parent, write_whole
from trainer.launchers.processes import AGENT, Process, descendants, end_all

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
AWAITED = {signal.SIGTERM, signal.SIGCHLD}
LOOK_S = 0.1  # interval of checking whether the tuner is gone; a child's end and SIGTERM are noticed at once


def main(owner: int, control: Path, command: list[str]) -> None:
    adopt_orphans()
    if os.getppid() != owner:
        return
    agent = start(command)
    code = wait(agent, owner)
    end_all(family)
    if code is not None:
        write_whole(exit_path(control), str(code).encode())


def adopt_orphans() -> None:
    """Makes this process the parent of descendants that are orphaned from now on, and blocks the signals `AWAITED`, for
    which it then waits explicitly."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)


def exit_path(control: Path) -> Path:
    """Returns the file with the exit code of an agent that ended by itself; negative is the signal that ended it."""
    return control / "agent.exit"


def start(command: list[str]) -> int:
    """Forks the agent, which dies with this process, and returns its pid.

    Its children inherit that pid in the variable `AGENT`.
    """
    me = os.getpid()
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)  # a mask survives exec
            die_with_parent(me)
            os.execvpe(command[0], command, {**os.environ, AGENT: str(os.getpid())})
        except OSError:
            traceback.print_exc()
        finally:
            os._exit(127)
    return pid


def wait(agent: int, owner: int, look: Callable[[], object] = lambda: None) -> int | None:
    """Returns the agent's exit code once it has ended; None if it must be ended. Calls `look` at every poll."""
    while os.getppid() == owner:
        received = signal.sigtimedwait(AWAITED, LOOK_S)
        look()
        exited = reap()
        if agent in exited:
            return exited[agent]
        if received is not None and received.si_signo == signal.SIGTERM:
            return None
    return None


def reap() -> dict[int, int]:
    """Waits for every child that has ended, adopted ones too; returns {pid: exit code}."""
    exited: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return exited
        if pid == 0:
            return exited
        exited[pid] = os.waitstatus_to_exitcode(status)


def family() -> list[Process]:
    """Returns the live descendants of this process, after reaping the dead."""
    reap()
    return descendants(os.getpid())


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
