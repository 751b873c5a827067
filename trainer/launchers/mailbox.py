"""Protocol between a launcher and the ranks that it started: files in a control folder, so that it works over a shared
disk.

A worker needs three calls, and torchrun's RANK for its number:

    mailbox.arrive(control, rank)                  # first thing, before any heavy import
    ...                                            # imports
    for burst in mailbox.requests(control, rank):  # says "ready", then waits for burst folders
        mailbox.reply(burst, RankReport(...))

A rank that fails in a burst replies with the error and continues to wait; the launcher ends it. stdout and stderr of a
burst go to `<burst>/log/rank<r>.log`. In the control folder: `rank<r>.pid` (it has arrived), `rank<r>.ready` (its
imports are done), `request-<n>.json`, n = 0, 1, …: `{"burst": folder}` or `{"stop": true}`.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trainer.launchers.processes import AGENT, Process, this_process
from trainer.secrets import masked

if TYPE_CHECKING:
    from trainer.rank_report import RankReport  # imported where it is used, to keep starts short

# signal that makes a rank write its threads' stacks to its log; SIGUSR2 is Kineto's (ConfigLoader.cpp)
STACKS = signal.SIGUSR1
POLL_S = 0.005  # interval of polling for a request: adds at most this to a burst, costs a waiting rank 0.1 % of a core
TAIL_BYTES = 64 * 1024  # bytes at the end of a log that are searched for the cause of a failure
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Request(msgspec.Struct, frozen=True, kw_only=True):
    burst: str | None = None
    stop: bool = False


def request_path(control: Path, number: int) -> Path:
    return control / f"request-{number}.json"


def agent_log(control: Path) -> Path:
    """Returns the log of the process that starts the ranks."""
    return control / "agent.log"


def tail(path: Path) -> str:
    """Returns the end of a log; empty if there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")


def log_path(burst_folder: Path, rank: int) -> Path:
    return burst_folder / "log" / f"rank{rank}.log"


def arrive(control: Path, rank: int) -> None:
    """Makes this rank end with the process that started it, and writes its pid file.

    Ends the process at once if its parent is already gone. Call it first, from the main thread. Garbage is collected
    again from `requests` on: Python would search all of torch many times while it is imported.
    """
    gc.disable()
    die_with_parent(int(os.environ.get(AGENT, os.getppid())))
    atexit.register(gc.freeze)  # without it, Python searches all of torch for garbage at exit: 1 s of CPU time
    faulthandler.register(STACKS, file=2, all_threads=True)  # a file number: follows the redirection to a burst's log
    me = this_process()
    write_whole(control / f"rank{rank}.pid", f"{me.pid} {me.started}".encode())


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends; exits if `parent` has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


def requests(control: Path, rank: int) -> Iterator[Path]:
    """Yields the folders of bursts to run, in order; ends at a stop request, or when the control folder is gone.

    What is imported by now is left out of Python's search for garbage, until `gc.unfreeze()`.
    """
    gc.freeze()
    gc.enable()
    write_whole(control / f"rank{rank}.ready", b"")
    number = 0
    while (request := _next_request(control, number)) is not None and request.burst is not None:
        burst_folder = Path(request.burst)
        log_to(log_path(burst_folder, rank))
        yield burst_folder
        number += 1


def _next_request(control: Path, number: int) -> Request | None:
    """Waits for the request of that number and returns it; None if there will be none."""
    path = request_path(control, number)
    while not path.exists():
        if not control.exists():
            return None
        time.sleep(POLL_S)
    return msgspec.json.decode(path.read_bytes(), type=Request)


def log_to(path: Path) -> None:
    """Redirects stdout and stderr of this process, C libraries included, to the file, line-buffered."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    os.dup2(number, 1)
    os.dup2(number, 2)
    os.close(number)


def reply(burst_folder: Path, report: RankReport) -> None:
    """Writes this rank's report of the burst, with secrets masked."""
    from trainer.rank_report import report_path

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    path = report_path(burst_folder, report.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.encode(_masked(report)))


def _masked(report: RankReport) -> RankReport:
    error = report.error and msgspec.structs.replace(
        report.error, message=masked(report.error.message), traceback=masked(report.error.traceback)
    )
    return msgspec.structs.replace(report, error=error, warnings=[masked(text) for text in report.warnings])


def post(control: Path, number: int, request: Request) -> None:
    """Sends request `number` to all ranks; numbers count up from 0."""
    write_whole(request_path(control, number), msgspec.json.encode(request))


def arrived(control: Path, rank: int) -> Process | None:
    """Returns the process of a rank; None until it has arrived."""
    try:
        pid, started = (control / f"rank{rank}.pid").read_text().split()
    except FileNotFoundError:
        return None
    return Process(pid=int(pid), started=int(started))


def is_ready(control: Path, rank: int) -> bool:
    return (control / f"rank{rank}.ready").exists()


def report_of(burst_folder: Path, rank: int) -> RankReport | None:
    """Returns the rank's report; None until it has replied."""
    from trainer.rank_report import RankReport, report_path

    try:
        content = report_path(burst_folder, rank).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(content, type=RankReport)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file atomically: a reader sees nothing or everything."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    temporary.write_bytes(content)
    temporary.replace(path)
