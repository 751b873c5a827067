"""Runs a command and decides for each program that it or its children start what it becomes (`programs.py`).

ptrace stops processes at system calls that start programs or name files: the program is rewritten in place, and files
that the script may not write are replaced by scratch files.
"""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.launch_scripts.launchers import Peeled
from trainer.recording import kernel
from trainer.recording.jail import Isolation
from trainer.recording.programs import Process, Replacement, Values, becomes, headers_of
from trainer.recording.stop import Stop

MAX_PROCESSES = 500
ABSENT, SOURCE, TEST = "/.moe-autotune-absent/", "/.moe-autotune-source/", "/.moe-autotune-test/"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
AT_FDCWD = -100 & 0xFFFFFFFF
# positions of each call's arguments: its path, the folder that it is relative to (None: the current one), its open
# flags
_PLACES = {"open": (0, None, 1), "creat": (0, None, None), "stat": (0, None, None), "lstat": (0, None, None),
           "access": (0, None, None), "chdir": (0, None, None), "openat": (1, 0, 2), "newfstatat": (1, 0, None),
           "faccessat": (1, 0, None), "faccessat2": (1, 0, None), "statx": (1, 0, None)}  # fmt: skip


_PLAIN = re.compile(r"/dev/(null|zero|full|tty|std(in|out|err)|fd/\d+)$|/proc/(self|\d+)/fd/\d+$")


class StoppedError(Exception):
    """Raised if the recording cannot continue; the message says why."""


@dataclass(kw_only=True)
class Tracer:
    """Tracer of the programs that one run starts. `trains`: every command that would train, in order."""

    values: Values
    isolation: Isolation
    scratch: str
    proc: int
    reported: int  # descriptor of the file to which bash reports
    program: tuple[str, ...]  # the command that the user named
    present: set[str]  # paths taken as present; a folder's name ends with /
    absent: set[str]
    parents: dict[int, int] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    launched: dict[int, tuple[Peeled, ...]] = field(default_factory=dict)
    apart: dict[int, int] = field(default_factory=dict)  # process inside a container or ssh -> the first one in it
    # words of #SBATCH lines by the arguments of sbatch
    headers: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    trains: list[dict[str, Any]] = field(default_factory=list)
    others: list[list[str]] = field(default_factory=list)
    varying: list[tuple[str, str]] = field(default_factory=list)
    # a path -> the line that tests it, with /d appended if it tests for a folder
    tests: dict[str, str] = field(default_factory=dict)
    test_by_process: dict[int, str] = field(default_factory=dict)
    # a path that the script writes -> the scratch file used instead
    moved: dict[str, str] = field(default_factory=dict)
    rooted: bool = False
    calls: dict[int, str] = field(
        default_factory=lambda: {n: name for name in kernel.names("traced") if (n := kernel.number(name)) is not None}
    )

    def follow(self, first: int) -> int:
        """Follows the run until the first process has ended; returns its exit code. Raises StoppedError for more than
        MAX_PROCESSES processes."""
        os.waitpid(first, 0)
        options = kernel.TRACE_FORKS | kernel.TRACE_SECCOMP | kernel.TRACE_EXIT_KILLS
        kernel.ptrace(kernel.PTRACE_SETOPTIONS, first, options)
        kernel.drop_capabilities()  # from now on this process may read and write no more than the script
        kernel.ptrace(kernel.PTRACE_CONT, first)
        self.alive, started = {first}, {first}
        while True:
            pid, status = os.waitpid(-1, 0x40000000)
            if not os.WIFSTOPPED(status):
                self.alive.discard(pid)
                if pid == first:
                    return os.waitstatus_to_exitcode(status)
                continue
            go = self._stopped(pid, status, started)
            for each, deliver in go.items():
                with suppress(ProcessLookupError):
                    kernel.ptrace(kernel.PTRACE_CONT, each, deliver)

    def _stopped(self, pid: int, status: int, started: set[int]) -> dict[int, int]:
        """Handles the stop of a process; returns the processes to continue, each with the signal to deliver."""
        event, given = status >> 16, os.WSTOPSIG(status)
        if event == kernel.EVENT_SECCOMP:
            with suppress(ProcessLookupError):
                self._call(Stop(pid=pid, proc=self.proc))
        elif event in kernel.EVENT_FORKS:
            child = self._child(pid)
            if child in started:  # the child stopped before its parent's event was seen, and waits
                return {pid: 0, child: 0}
        elif given == signal.SIGSTOP and pid not in started:
            started.add(pid)
            return {pid: 0} if pid in self.parents else {}
        elif event == 0 and given != signal.SIGTRAP:
            return {pid: given}
        return {pid: 0}

    def _child(self, pid: int) -> int:
        child = 0
        with suppress(ProcessLookupError):
            child = kernel.event_message(pid)
            self.parents[child] = pid
            self.launched[child] = self.launched.get(pid, ())
            if pid in self.apart:
                self.apart[child] = self.apart[pid]
            self.alive.add(child)
        if len(self.alive) > MAX_PROCESSES:
            raise StoppedError(f"it had more than {MAX_PROCESSES} processes at once")
        return child

    def _call(self, stop: Stop) -> None:
        name = self.calls.get(stop.values[stop.machine.number] & 0xFFFFFFFF, "")
        if name == "execve":
            self._start(stop)
        elif name:
            self._path(stop, name)
        stop.done()

    def _start(self, stop: Stop) -> None:
        path, words = stop.text(stop.argument(0)), tuple(stop.texts(stop.argument(1)))
        variables = dict(each.split("=", 1) for each in stop.texts(stop.argument(2)) if "=" in each)
        cwd = os.readlink(f"{stop.pid}/cwd", dir_fd=self.proc)
        if not words:
            return
        root = not self.rooted and words == self.program
        self.rooted = True
        named = _named(path.removeprefix(ABSENT), words[0].removeprefix(ABSENT))
        process = Process(
            words=(named, *words[1:]), env=variables, cwd=cwd, root=root,
            layer=self.isolation == Isolation.NAMESPACES, launched=self.launched.get(stop.pid, ()),
        )  # fmt: skip
        found = becomes(process, self.values)
        self._record(stop, process, found, cwd)
        if found.varies and not found.says:
            self.varying.append((found.varies, json.dumps(found.run)))
        elif found.varies:
            self.varying.append((found.varies, found.says.rstrip("\n")))
        if found.run and (real := _found(found.run[0], variables, cwd)):
            self._replace(stop, real, found.run, words, path)
        elif found.says:
            answer = Path(self.scratch, f"answer{len(os.listdir(self.scratch))}")
            answer.write_text(found.says)
            self._replace(stop, "/bin/cat", ("cat", str(answer)), words, path)
        elif self._reads_pipe(stop.pid):
            self._replace(stop, "/bin/sed", ("sed", "-n", "d"), words, path)
        else:
            self._replace(stop, "/bin/true", ("true",), words, path)

    def _replace(self, stop: Stop, path: str, run: tuple[str, ...], words: tuple[str, ...], was: str) -> None:
        if path != was:
            stop.set(0, path)
        if run[1:] != words[1:]:
            stop.set_texts(1, run)

    def _reads_pipe(self, pid: int) -> bool:
        with suppress(OSError):
            return os.readlink(f"{pid}/fd/0", dir_fd=self.proc).startswith("pipe:")
        return False

    def _record(self, stop: Stop, process: Process, found: Replacement, cwd: str) -> None:
        before, pid = process.launched, stop.pid
        new = found.launched[len(before) :]
        self.launched[pid] = found.launched
        self.headers |= {each.words: self._headers(each, cwd) for each in new if each.name == "sbatch"}
        if any(_is_apart(each) for each in new):
            self.apart.setdefault(pid, pid)
        if found.trains is not None:
            env = {**process.env, **dict(found.env)}
            self.trains.append({
                "words": found.trains,
                "launched": [asdict(each) for each in found.launched],
                "env": env,
                "cwd": env.get("PWD", cwd),
                "pids": list(self._ancestors(pid)),
                "apart": self._number(self.apart.get(pid)),
                "reported": os.fstat(self.reported).st_size,
                "headers": [word for each in found.launched for word in self.headers.get(each.words, ())],
            })  # fmt: skip
        elif found.run is None and not found.says:
            self.others.append(list(process.words))

    def _headers(self, each: Peeled, cwd: str) -> list[str]:
        """Returns the arguments of sbatch, and the words of its script's #SBATCH lines."""
        words = each.words[1:]
        with suppress(OSError, IndexError):
            script = Path(self.moved.get(path := os.path.join(cwd, words[-1]), path))
            return [*headers_of(script.read_text(errors="replace")), *words[:-1]]
        return list(words)

    def _ancestors(self, pid: int) -> Any:
        """Yields the pids of the process and its ancestors, as the script's bash sees them."""
        at: int | None = pid
        while at is not None:
            yield self._number(at)
            at = self.parents.get(at)

    def _number(self, pid: int | None) -> int | None:
        with suppress(OSError, StopIteration), open(os.open(f"{pid}/status", os.O_RDONLY, dir_fd=self.proc)) as file:
            return int(next(line for line in file if line.startswith("NSpid")).split()[-1])
        return None

    def _path(self, stop: Stop, name: str) -> None:
        at, folder, flags = _PLACES[name]
        written = stop.text(stop.argument(at))
        if written.startswith(TEST):
            self.test_by_process[stop.pid] = written.removeprefix(TEST).removeprefix("0")
            return
        if written.startswith(SOURCE):
            self.present.add(os.path.normpath(os.path.join(self._cwd(stop), written.removeprefix(SOURCE))))
            stop.set(at, "/")
            return
        if not written:
            return
        place = "cwd"
        if folder is not None and stop.argument(folder) & 0xFFFFFFFF != AT_FDCWD:
            place = f"fd/{stop.argument(folder) & 0xFFFFFFFF}"
        with suppress(OSError):
            written = os.path.join(os.readlink(f"{stop.pid}/{place}", dir_fd=self.proc), written)
        path = os.path.normpath(written)
        opened = stop.argument(flags) if flags is not None else os.O_CREAT if name == "creat" else 0
        if self.test_by_process.get(stop.pid) and flags is None and not path.startswith("/dev/"):
            self.tests.setdefault(path, self.test_by_process[stop.pid])
        if other := self._instead(path, name, opened):
            stop.set(at, other)

    def _cwd(self, stop: Stop) -> str:
        return os.readlink(f"{stop.pid}/cwd", dir_fd=self.proc)

    def _instead(self, path: str, name: str, opened: int) -> str | None:
        """Returns the path to use instead of this one; None keeps it."""
        if path in self.absent or any(path.startswith(f"{each}/") for each in self.absent):
            return "/dev/null/absent"
        if path in self.moved:
            return self.moved[path]
        if not os.path.lexists(path) and {path, f"{path}/"} & self.present:
            return self._folder_of(path) if f"{path}/" in self.present else self._scratch_of(path)
        if name == "chdir" and not os.path.isdir(path):
            with suppress(OSError):
                os.makedirs(path)
                return None
            return self._folder_of(path)
        if opened & WRITES and not _PLAIN.match(path) and not self._may_write(path):
            return self._scratch_of(path, new=bool(opened & os.O_EXCL))
        return None

    def _may_write(self, path: str) -> bool:
        if self.isolation != Isolation.NAMESPACES:
            return False
        return os.access(path if os.path.lexists(path) else os.path.dirname(path), os.W_OK)

    def _scratch_of(self, path: str, *, new: bool = False) -> str:
        """Returns a scratch file with a copy of the file's content; with `new` it does not exist yet."""
        place = Path(self.scratch, f"file{len(self.moved)}")
        with suppress(OSError, ValueError):
            if not new:
                place.write_bytes(Path(path).read_bytes() if os.path.isfile(path) else b"")
        self.moved[path] = str(place)
        return str(place)

    def _folder_of(self, path: str) -> str:
        place = Path(self.scratch, f"folder{len(self.moved)}")
        place.mkdir(exist_ok=True)
        self.moved[path] = str(place)
        return str(place)


def _named(path: str, typed: str) -> str:
    """Returns the program's name as the script has it, or its file if the names differ."""
    return typed if os.path.basename(typed) == os.path.basename(path) else path


def _is_apart(each: Peeled) -> bool:
    pyxis = any(word.startswith(("--container-image", "--container-name")) for word in each.words)
    return pyxis or each.name in ("docker", "singularity", "enroot", "ssh")


def _found(word: str, variables: dict[str, str], cwd: str) -> str | None:
    """Returns the program's file, also outside the script's PATH."""
    if "/" in word:
        found = os.path.join(cwd, word)
        return found if os.path.exists(found) else None
    folders = [*variables.get("PATH", "").split(":"), "/usr/local/bin", "/usr/bin", "/bin"]
    there = [path for folder in folders if folder and os.access(path := f"{folder}/{word}", os.X_OK)]
    return next((path for path in there if not word.startswith("python") or _is_binary(path)), None)


def _is_binary(path: str) -> bool:
    """Returns True for a binary; False for a script, such as pyenv's, that would look for the real program."""
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"
