"""Our processes on this machine: how they are recognised, which are alive, and how they are ended. Reads /proc: Linux
only.

A process is identified by its pid and its start time, because pids are reused. Every process of a start has two
variables in its environment, which children inherit: `MARK`, the start it belongs to, and `OWNER`, the tuner that
started it, or on several nodes the keeper of an agent and its ranks; all but the supervisor also have `AGENT`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MARK = "MOE_AUTOTUNE_MARK"
OWNER = "MOE_AUTOTUNE_OWNER"
AGENT = "MOE_AUTOTUNE_AGENT"  # pid of the process that starts the ranks
END_DEADLINE_S = 60.0  # a process inside a driver call dies only when the call returns; CUDA teardown takes seconds
POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process.

    `started` is in clock ticks since boot, as the kernel counts, so that setting the clock does not change it.
    """

    pid: int
    started: int


@dataclass(frozen=True, kw_only=True)
class Status:
    """One reading of /proc/<pid>/stat. `wait_status` (see `os.waitstatus_to_exitcode`) is valid once `dead`."""

    process: Process
    parent: int
    state: str  # R running, S sleeping, D in the kernel, T stopped, Z dead but not yet waited for
    wait_status: int

    @property
    def dead(self) -> bool:
        return self.state in "ZX"

    @property
    def stopped(self) -> bool:
        return self.state in "Tt"


def status_of(pid: int) -> Status | None:
    """Reads the kernel's status of the pid; None if there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold spaces and brackets
    return Status(
        process=Process(pid=pid, started=int(fields[19])),
        parent=int(fields[1]),
        state=fields[0],
        wait_status=int(fields[49]),
    )


def this_process() -> Process:
    status = status_of(os.getpid())
    assert status is not None, "/proc is not mounted"
    return status.process


def is_alive(process: Process) -> bool:
    """Returns whether this same process still runs (a zombie does not)."""
    status = status_of(process.pid)
    return status is not None and status.process == process and not status.dead


def owner_text(process: Process) -> str:
    """Returns the value of `OWNER` for a process.

    It includes the pid namespace and the boot: pids of another container or another machine mean nothing here, and the
    first namespace has the same number on every machine.
    """
    return f"{process.pid}:{process.started}:{_pid_namespace()}:{_boot()}"


def owner_from(text: str) -> Process | None:
    """Returns the process in a value of `OWNER`; None if it is malformed, or of another pid namespace or machine."""
    pid, started, *where = (*text.split(":"), "")
    if not (pid.isdecimal() and started.isdecimal()) or where[:2] != [_pid_namespace(), _boot()]:
        return None
    return Process(pid=int(pid), started=int(started))


def _pid_namespace() -> str:
    return os.readlink(PROC / "self" / "ns" / "pid").removeprefix("pid:")


def _boot() -> str:
    """Returns the kernel's id of this boot of the machine, the same in every container."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def marked() -> Iterator[tuple[Process, dict[str, str]]]:
    """Yields every live process with a `MARK`, and its environment.

    Leaves out processes of other users, which cannot be read.
    """
    for entry in os.listdir(PROC):
        environment = _environment(entry) if entry.isdecimal() else {}
        if MARK in environment and (status := status_of(int(entry))) and not status.dead:
            yield status.process, environment


def _environment(pid: str) -> dict[str, str]:
    """Returns the environment with which the process was started; {} if it has no `MARK`, has ended or cannot be
    read."""
    try:
        content = (PROC / pid / "environ").read_bytes()
    except OSError:
        return {}
    if MARK.encode() not in content:
        return {}
    pairs = (pair.partition("=") for pair in content.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}


def with_mark(mark: str) -> list[Process]:
    """Returns the live processes whose environment has this mark: those of one start."""
    return [process for process, environment in marked() if environment[MARK] == mark]


def descendants(pid: int) -> list[Process]:
    """Returns the live children of the pid, their children, and so on, even those that cleared their environment."""
    found = [s for entry in os.listdir(PROC) if entry.isdecimal() and (s := status_of(int(entry)))]
    family = {pid}
    while grown := {s.process.pid for s in found if s.parent in family} - family:
        family |= grown
    return [s.process for s in found if s.process.pid in family - {pid} and not s.dead]


def send(process: Process, number: signal.Signals) -> None:
    """Sends a signal to this same process, never to another one that got its pid."""
    if is_alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def end_all(find: Callable[[], Iterable[Process]], *, deadline_s: float = END_DEADLINE_S) -> list[Process]:
    """Kills the processes that `find` returns until it returns none, so that processes forked in the meantime are ended
    too.

    Returns those left at the deadline (held inside the kernel).
    """
    give_up = time.monotonic() + deadline_s
    while left := list(find()):
        for process in left:
            send(process, signal.SIGKILL)
        if time.monotonic() > give_up:
            return left
        time.sleep(POLL_S)
    return []


def sweep() -> list[Process]:
    """Ends the processes of tuners that no longer live, and all their descendants, even with a cleared environment;
    does not touch processes of live tuners. Returns the processes ended, supervisors last.

    Supervisors come last because they adopt processes that lose their parent, so that these can still be found. A
    supervisor that has noticed its tuner's death does the same work, and ends by itself.
    """
    ended: dict[Process, None] = {}

    def orphans() -> list[Process]:
        left = {process: AGENT in environment for process, environment in marked() if _is_ownerless(environment)}
        supervisors = {process for process, under_agent in left.items() if not under_agent}
        family = left.keys() | {below for process in left for below in descendants(process.pid)}
        found = family - supervisors or supervisors
        ended.update(dict.fromkeys(found))
        return list(found)

    end_all(orphans)
    return list(ended)


def _is_ownerless(environment: dict[str, str]) -> bool:
    """Returns whether the environment names a tuner of this machine that no longer runs."""
    owner = owner_from(environment.get(OWNER, ""))
    return owner is not None and not is_alive(owner)
