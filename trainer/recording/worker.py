"""Makes recordings in a separate process: a list of requests as JSON on standard input, the records on standard output.

A child for each isolates itself, starts the command under the tracer and ends every process that the command left.
Started by `record.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.recording import kernel
from trainer.recording.jail import SCRATCH, Isolation, enter_namespaces, first_process, limits
from trainer.recording.programs import Values
from trainer.recording.tracer import StoppedError, Tracer

REPORTED = 250  # the file descriptor to which bash reports
AT_ONCE = 2  # recordings
BACKGROUND_S = 3  # seconds for background processes after the script has ended


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Makes one recording. Raises OSError if the requested isolation is not possible."""
    values, isolation = Values(**request["values"]), Isolation(request["isolation"])
    if kernel.machine() is None:
        raise OSError(38, "the registers of this machine are not known")
    reported, *outputs = (os.memfd_create(name, 0) for name in ("reported", "stdout", "stderr"))
    if isolation == Isolation.NAMESPACES:
        needed = [request["cwd"], request["env"]["HOME"], *request["argv"]]
        proc, scratch = enter_namespaces(values.hosts[0], needed), SCRATCH
    else:
        proc, scratch = os.open("/proc", os.O_PATH | os.O_DIRECTORY), request["scratch"]
    Path(scratch, "bash_env").write_text(request["bash_env"])
    Path(scratch, "job").write_text(request["job"])
    env = {**request["env"], "BASH_ENV": f"{scratch}/bash_env", "MOE_RECORD_JOB": f"{scratch}/job",
           "MOE_RECORD_TIME": str(values.time), "MOE_RECORD_SEED": str(values.seed)}  # fmt: skip
    tracer = Tracer(
        values=values, isolation=isolation, scratch=scratch, proc=proc, reported=reported,
        program=tuple(request["argv"]), present=set(request["present"]), absent=set(request["absent"]),
    )  # fmt: skip
    first = os.fork()
    if first == 0:
        _begin(request, env, (reported, *outputs), isolation, values, scratch)
    code, why = None, None

    def out_of_time(*_: Any) -> None:
        raise StoppedError(f"it did not end within {request['limit_s']} s")

    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(request["limit_s"])
    try:
        code = tracer.follow(first)
    except StoppedError as stopped:
        why = str(stopped)
    signal.alarm(0)
    _end({first, *tracer.alive})
    data, stdout, stderr = (os.pread(file, os.fstat(file).st_size, 0) for file in (reported, *outputs))
    for each in tracer.trains:
        each["reported"] = data[: each["reported"]].count(b"\0")
    lines = data.decode(errors="replace").split("\0")
    return {
        "code": code, "why": why, "trains": tracer.trains, "others": tracer.others, "varying": tracer.varying,
        "tests": tracer.tests, "reported": [line.split("\t", 3) for line in lines if line.count("\t") >= 3],
        "stderr": stderr[-4000:].decode(errors="replace"), "stdout": stdout[-4000:].decode(errors="replace"),
    }  # fmt: skip


def _last_of(child: int) -> int:
    """Returns the child's exit code once its background processes have ended; exits with it if their time is over."""
    code = 0
    with suppress(ChildProcessError):
        while True:
            pid, status = os.wait()
            if pid == child:
                ended = code = os.waitstatus_to_exitcode(status) & 0xFF
                signal.signal(signal.SIGALRM, lambda *_, ended=ended: os._exit(ended))
                signal.alarm(BACKGROUND_S)
    return code


def _end(pids: set[int]) -> None:
    """Kills the remaining processes and waits for their end."""
    stopped = time.monotonic() + BACKGROUND_S
    with suppress(ChildProcessError):
        while pids or time.monotonic() < stopped:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            pid, status = os.waitpid(-1, 0x40000000)
            pids = {pid} if os.WIFSTOPPED(status) else set()


def _begin(request: dict[str, Any], env: dict[str, str], files: tuple[int, ...], isolation: Isolation, values: Values,
           scratch: str) -> None:  # fmt: skip
    """Starts the command as a child of this process, which becomes the parent of its orphans. Does not return."""
    reported, *outputs = files
    try:
        os.setsid()
        if isolation == Isolation.NAMESPACES:
            first_process(values.pid)
        kernel.trace_me()
        os.kill(os.getpid(), signal.SIGSTOP)
        child = os.fork()
        if child:
            kernel.adopt_orphans()
            os._exit(_last_of(child))
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for at, output in enumerate(outputs, start=1):
            os.dup2(output, at)
        os.dup2(reported, REPORTED)
        os.chdir(request["cwd"])
        for each in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
            signal.signal(each, signal.SIG_DFL)
        limits()
        kernel.drop_capabilities()
        if isolation == Isolation.LANDLOCK:
            kernel.landlock([scratch, "/dev/null", "/dev/zero", "/dev/full"])
        kernel.filter_calls(changes_done=isolation != Isolation.NAMESPACES)
        os.execvpe(request["argv"][0], request["argv"], env)
    except BaseException as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(127)


def _answer(request: dict[str, Any], file: int) -> None:
    """Writes the record, or why there is none, to the file. Does not return."""
    try:
        answer = run(request)
    except OSError as error:
        answer = {"impossible": str(error)}
    except BaseException as error:
        answer = {"impossible": f"{type(error).__name__}: {error}"}
    with open(file, "w") as to:
        json.dump(answer, to)
    os._exit(0)


def main(requests: list[dict[str, Any]]) -> list[str]:
    """Makes each recording in a child of its own, at most AT_ONCE at a time; returns the answers as JSON."""
    files = [os.memfd_create("answer") for _ in requests]
    for at, (request, file) in enumerate(zip(requests, files, strict=True)):
        if at >= AT_ONCE:
            os.wait()
        if os.fork() == 0:
            _answer(request, file)
    with suppress(ChildProcessError):
        while True:
            os.wait()
    answers = (os.pread(file, os.fstat(file).st_size, 0).decode() for file in files)
    return [answer or json.dumps({"impossible": "its recorder was killed"}) for answer in answers]


if __name__ == "__main__":
    print(f"[{','.join(main(json.load(sys.stdin)))}]")
