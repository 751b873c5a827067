"""Linux system calls that Python does not have: namespaces, mounts, Landlock, seccomp and ptrace.

Numbers are those of x86_64 and aarch64. Sources: ptrace(2), seccomp(2), landlock(7), mount_setattr(2) of Linux 6.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PTRACE_TRACEME, PTRACE_CONT, PTRACE_SETOPTIONS, PTRACE_GETREGSET, PTRACE_SETREGSET = 0, 7, 0x4200, 0x4204, 0x4205
TRACE_FORKS, TRACE_SECCOMP, TRACE_EXIT_KILLS = 0x2 | 0x4 | 0x8, 0x80, 0x100000
EVENT_FORKS, EVENT_SECCOMP = (1, 2, 3), 7
NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # mount, uts, ipc, pid, network
NEW_USER = 0x10000000
NO_SUID, NO_DEV, BIND, RECURSIVE, PRIVATE = 2, 4, 4096, 16384, 1 << 18
_LIBC = ctypes.CDLL(None, use_errno=True)
_ALLOW, _TRACE, _ERRNO, _KILL = 0x7FFF0000, 0x7FF00000, 0x00050000, 0x80000000
_X32 = 0x40000000  # system calls of the x32 ABI begin here

# name, numbers (none: the architecture lacks it) and what a script's call becomes: `traced` stops it for the tracer,
# `done` answers as if it were done, `changes` does so where nothing else keeps files as they are, `refused` and
# `unknown` answer with an error, the latter so that programs take the older call
_CALLS = [row.split(",") for row in Path(__file__).with_name("calls.csv").read_text().splitlines()[1:]]
_IOCTLS = (0x5412, 0x40086602, 0x401C5820)  # TIOCSTI, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
_EPERM, _ENOSYS, _AUDIT = 1, 38, {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Registers of one architecture: positions of a system call's number, arguments and stack pointer among registers
    of 8 bytes."""

    name: str
    number: int
    arguments: tuple[int, ...]
    stack: int


@cache
def machine() -> Machine | None:
    """Returns this machine's registers; None for an architecture whose registers are not known here."""
    known = {
        "x86_64": Machine(name="x86_64", number=15, arguments=(14, 13, 12, 7), stack=19),
        "aarch64": Machine(name="aarch64", number=8, arguments=(0, 1, 2, 3), stack=31),
    }
    return known.get(platform.machine())


def number(name: str) -> int | None:
    """Returns the system call's number on this machine; None if it has none."""
    found = machine()
    cells = next(row for row in _CALLS if row[0] == name)
    cell = "" if found is None else cells[1 + (found.name == "aarch64")]
    return int(cell) if cell else None


def names(*answers: str) -> list[str]:
    """Returns the names of the system calls that get one of these answers."""
    return [row[0] for row in _CALLS if row[3] in answers]


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def unshare(flags: int) -> None:
    _checked(_LIBC.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    words = (word if word is None else os.fsencode(word) for word in (source, target, kind, data))
    source_, target_, kind_, data_ = words
    _checked(_LIBC.mount(source_, target_, kind_, ctypes.c_ulong(flags), data_), f"mount {target}")


def set_host_name(name: str) -> None:
    _checked(_LIBC.sethostname(os.fsencode(name), len(os.fsencode(name))), "sethostname")


def make_read_only(folder: str, *, devices: bool = False) -> None:
    """Makes the mount and all mounts below it read-only; `devices` can still be read and written, but not changed
    themselves. Raises OSError before Linux 5.12."""
    attributes = struct.pack("=QQQQ", 1 | 2 | (0 if devices else 4), 0, 0, 0)  # read-only, no set-user-id, no devices
    _checked(_LIBC.syscall(442, -100, os.fsencode(folder), 0x8000, attributes, 32), f"mount_setattr {folder}")


def drop_capabilities() -> None:
    """Drops all capabilities for good, also for programs executed later."""
    for capability in range(64):
        _LIBC.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; fails where there are fewer
    _LIBC.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
    _checked(_LIBC.prctl(38, 1, 0, 0, 0), "no_new_privs")
    header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _checked(_LIBC.capset(header, none), "capset")


def landlock(writable: Sequence[str]) -> None:
    """Restricts writes to these folders and files from now on. Raises OSError before Linux 6.2 or without Landlock."""
    version = _checked(_LIBC.syscall(444, None, 0, 1), "landlock")
    if version < 3:
        raise OSError(_ENOSYS, "Landlock cannot forbid to truncate files before Linux 6.2")
    changes = 0x7FF2  # write, remove and make files of any kind, refer, truncate
    rules = _checked(_LIBC.syscall(444, struct.pack("=Q", changes), 8, 0), "landlock")
    for path in writable:
        folder = os.open(path, os.O_PATH)
        allowed = changes if os.path.isdir(path) else 0x4002
        _checked(_LIBC.syscall(445, rules, 1, struct.pack("=Qi", allowed, folder), 0), f"landlock {path}")
    _checked(_LIBC.prctl(38, 1, 0, 0, 0), "no_new_privs")
    _checked(_LIBC.syscall(446, rules, 0), "landlock")


def filter_calls(*, changes_done: bool) -> None:
    """Installs a seccomp filter on this process and its children, for good: system calls are traced, refused or
    answered as done. `changes_done`: calls that change files without opening one are answered as done and not
    executed."""
    found = machine()
    assert found is not None
    rules = [(0x20, 0, 0, 4), (0x15, 1, 0, _AUDIT[found.name]), (0x06, 0, 0, _KILL), (0x20, 0, 0, 0)]
    rules += [(0x35, 0, 1, _X32), (0x06, 0, 0, _KILL)]
    done = names("done", "changes") if changes_done else names("done")
    refused, unknown = (names("refused"), _ERRNO | _EPERM), (names("unknown"), _ERRNO | _ENOSYS)
    for calls, answer in ((names("traced"), _TRACE), (done, _ERRNO), refused, unknown):
        for each in calls:
            if (call := number(each)) is not None:
                rules += [(0x15, 0, 1, call), (0x06, 0, 0, answer)]
    for request in _IOCTLS:
        rules += [(0x15, 0, 4, number("ioctl") or 0), (0x20, 0, 0, 24), (0x15, 0, 1, request)]
        rules += [(0x06, 0, 0, _ERRNO | _EPERM)]
        rules += [(0x20, 0, 0, 0)]
    rules += [(0x15, 0, 4, number("clone") or 0), (0x20, 0, 0, 16), (0x45, 0, 1, NEW_USER)]
    rules += [(0x06, 0, 0, _ERRNO | _EPERM)]
    rules += [(0x20, 0, 0, 0)]
    # prlimit64 with new limits: the pointer's lower or upper half is not 0
    rules += [(0x15, 0, 5, number("prlimit64") or 0), (0x20, 0, 0, 32), (0x15, 0, 2, 0), (0x20, 0, 0, 36)]
    rules += [(0x15, 1, 0, 0), (0x06, 0, 0, _ERRNO), (0x06, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(rules), ctypes.addressof(kept))
    _checked(_LIBC.prctl(22, 2, program, 0, 0), "seccomp")


def adopt_orphans() -> None:
    """Makes this process the new parent of descendants whose parent has ended."""
    _checked(_LIBC.prctl(36, 1, 0, 0, 0), "subreaper")


def trace_me() -> None:
    _checked(_LIBC.ptrace(PTRACE_TRACEME, 0, None, None), "ptrace")


def ptrace(request: int, pid: int, data: int = 0) -> None:
    _checked(_LIBC.ptrace(request, pid, None, ctypes.c_void_p(data)), "ptrace")


def registers(pid: int) -> list[int]:
    """Reads the registers of a stopped process, each of 8 bytes."""
    room = (ctypes.c_uint64 * 68)()
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(room), ctypes.sizeof(room))
    _checked(_LIBC.ptrace(PTRACE_GETREGSET, pid, ctypes.c_void_p(1), vector), "ptrace")
    return list(room[: vector[1] // 8])


def set_registers(pid: int, values: Sequence[int]) -> None:
    room = (ctypes.c_uint64 * len(values))(*values)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(room), ctypes.sizeof(room))
    _checked(_LIBC.ptrace(PTRACE_SETREGSET, pid, ctypes.c_void_p(1), vector), "ptrace")


def event_message(pid: int) -> int:
    """Returns the pid of the child that a fork made."""
    found = ctypes.c_ulong()
    _checked(_LIBC.ptrace(0x4201, pid, None, ctypes.byref(found)), "ptrace")
    return found.value
