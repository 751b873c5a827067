"""System calls of Linux that Python does not have: namespaces, mounts, Landlock, seccomp and ptrace.

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

PTRACE_TRACEME, PTRACE_CONT, PTRACE_SETOPTIONS, PTRACE_GETREGSET, PTRACE_SETREGSET = 0, 7, 0x4200, 0x4204, 0x4205
TRACE_FORKS, TRACE_SECCOMP, TRACE_EXIT_KILLS = 0x2 | 0x4 | 0x8, 0x80, 0x100000
EVENT_FORKS, EVENT_SECCOMP = (1, 2, 3), 7
NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # mount, uts, ipc, pid, network
NEW_USER = 0x10000000
READ_ONLY, NO_SUID, NO_DEV, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_LIBC = ctypes.CDLL(None, use_errno=True)
_ALLOW, _TRACE, _ERRNO, _KILL = 0x7FFF0000, 0x7FF00000, 0x00050000, 0x80000000
_X32 = 0x40000000  # system calls of the x32 ABI begin here

# name -> (x86_64, aarch64); None: it has none
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "open": (2, None), "stat": (4, None), "lstat": (6, None), "access": (21, None), "creat": (85, None),
    "execve": (59, 221), "chdir": (80, 49), "openat": (257, 56), "newfstatat": (262, 79), "faccessat": (269, 48),
    "faccessat2": (439, 439), "statx": (332, 291),
    "socket": (41, 198), "socketpair": (53, 199), "execveat": (322, 281), "openat2": (437, 437), "clone3": (435, 435),
    "io_uring_setup": (425, 425), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138), "ptrace": (101, 117), "setrlimit": (160, 164),
    "process_vm_writev": (311, 271), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "open_by_handle_at": (304, 265), "keyctl": (250, 219), "add_key": (248, 217), "bpf": (321, 280),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "utime": (132, None),
    "utimes": (235, None), "utimensat": (280, 88), "futimesat": (261, None), "truncate": (76, 45), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "rmdir": (84, None),
    "mkdir": (83, None), "mkdirat": (258, 34), "link": (86, None), "linkat": (265, 37), "symlink": (88, None),
    "symlinkat": (266, 36), "mknod": (133, None), "mknodat": (259, 33), "msgget": (68, 186), "shmget": (29, 194),
    "semget": (64, 190), "mq_open": (240, 180), "ioctl": (16, 29), "prlimit64": (302, 261), "clone": (56, 220),
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "ioprio_set": (251, 30),
}  # fmt: skip
TRACED = ("execve", "chdir", "open", "openat", "creat", "stat", "lstat", "newfstatat", "access", "faccessat",
          "faccessat2", "statx")  # fmt: skip
DONE = ("kill", "tkill", "tgkill", "pidfd_send_signal", "rt_sigqueueinfo", "setrlimit", "setpriority",
        "sched_setaffinity", "ioprio_set")  # answered as done  # fmt: skip
REFUSED = ("socket", "socketpair", "ptrace", "process_vm_writev", "unshare", "setns", "mount", "umount2", "keyctl",
           "open_by_handle_at", "add_key", "bpf", "msgget", "shmget", "semget", "mq_open")  # fmt: skip
UNKNOWN = ("execveat", "openat2", "clone3", "io_uring_setup")  # for which programs take the older call
CHANGES = ("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "setxattr", "lsetxattr",
           "fsetxattr", "removexattr", "lremovexattr", "utime", "utimes", "utimensat", "futimesat", "truncate", "unlink",
           "unlinkat", "rename", "renameat", "renameat2", "rmdir", "mkdir", "mkdirat", "link", "linkat", "symlink",
           "symlinkat", "mknod", "mknodat")  # of the file system without opening a file  # fmt: skip
_IOCTLS = (0x5412, 0x40086602, 0x401C5820)  # TIOCSTI, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
_EPERM, _ENOSYS, _AUDIT = 1, 38, {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a system call's number, arguments and stack pointer stand among the registers, each of 8 bytes."""

    name: str
    number: int
    arguments: tuple[int, ...]
    stack: int


@cache
def machine() -> Machine | None:
    """None: an architecture whose registers are not known here."""
    known = {
        "x86_64": Machine(name="x86_64", number=15, arguments=(14, 13, 12, 7), stack=19),
        "aarch64": Machine(name="aarch64", number=8, arguments=(0, 1, 2, 3), stack=31),
    }
    return known.get(platform.machine())


def number(name: str) -> int | None:
    """The system call's number on this machine; None where it has none."""
    found = machine()
    return None if found is None else _NUMBERS[name][found.name == "aarch64"]


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


def make_read_only(folder: str) -> None:
    """The mount and all below it. OSError before Linux 5.12."""
    attributes = struct.pack("=QQQQ", 1 | 2 | 4, 0, 0, 0)  # read-only, no set-user-id, no devices
    _checked(_LIBC.syscall(442, -100, os.fsencode(folder), 0x8000, attributes, 32), f"mount_setattr {folder}")


def give_up_privileges() -> None:
    """No capability now, none from programs to come, and no way to have one again."""
    for capability in range(64):
        _LIBC.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; fails where there are fewer
    _LIBC.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
    _checked(_LIBC.prctl(38, 1, 0, 0, 0), "no_new_privs")
    header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _checked(_LIBC.capset(header, none), "capset")


def landlock(writable: Sequence[str]) -> None:
    """From now on files are changed below these folders only. OSError where the kernel cannot."""
    version = _checked(_LIBC.syscall(444, None, 0, 1), "landlock")
    if version < 3:
        raise OSError(_ENOSYS, "Landlock cannot forbid to truncate files before Linux 6.2")
    changes = 0x7FF2  # write, remove and make whatever kind, refer, truncate
    rules = _checked(_LIBC.syscall(444, struct.pack("=Q", changes), 8, 0), "landlock")
    for path in writable:
        folder = os.open(path, os.O_PATH)
        allowed = changes if os.path.isdir(path) else 0x4002
        _checked(_LIBC.syscall(445, rules, 1, struct.pack("=Qi", allowed, folder), 0), f"landlock {path}")
    _checked(_LIBC.prctl(38, 1, 0, 0, 0), "no_new_privs")
    _checked(_LIBC.syscall(446, rules, 0), "landlock")


def filter_calls(*, changes_done: bool) -> None:
    """System calls to trace, to refuse and to answer as done, of this process and its children for ever.
    `changes_done`: also those that change files without opening one are answered and not done."""
    found = machine()
    assert found is not None
    rules = [(0x20, 0, 0, 4), (0x15, 1, 0, _AUDIT[found.name]), (0x06, 0, 0, _KILL), (0x20, 0, 0, 0)]
    rules += [(0x35, 0, 1, _X32), (0x06, 0, 0, _KILL)]
    done = (*DONE, *CHANGES) if changes_done else DONE
    for names, answer in ((TRACED, _TRACE), (done, _ERRNO), (REFUSED, _ERRNO | _EPERM), (UNKNOWN, _ERRNO | _ENOSYS)):
        for each in names:
            if (call := number(each)) is not None:
                rules += [(0x15, 0, 1, call), (0x06, 0, 0, answer)]
    for request in _IOCTLS:
        rules += [(0x15, 0, 4, number("ioctl")), (0x20, 0, 0, 24), (0x15, 0, 1, request), (0x06, 0, 0, _ERRNO | _EPERM)]
        rules += [(0x20, 0, 0, 0)]
    rules += [(0x15, 0, 4, number("clone")), (0x20, 0, 0, 16), (0x45, 0, 1, NEW_USER), (0x06, 0, 0, _ERRNO | _EPERM)]
    rules += [(0x20, 0, 0, 0)]
    # prlimit64 with new limits: the pointer's lower or upper half is not 0
    rules += [(0x15, 0, 5, number("prlimit64")), (0x20, 0, 0, 32), (0x15, 0, 2, 0), (0x20, 0, 0, 36)]
    rules += [(0x15, 1, 0, 0), (0x06, 0, 0, _ERRNO), (0x06, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(rules), ctypes.addressof(kept))
    _checked(_LIBC.prctl(22, 2, program, 0, 0), "seccomp")


def take_in_orphans() -> None:
    """From now on this process is the parent of its descendants whose own has ended."""
    _checked(_LIBC.prctl(36, 1, 0, 0, 0), "subreaper")


def trace_me() -> None:
    _checked(_LIBC.ptrace(PTRACE_TRACEME, 0, None, None), "ptrace")


def ptrace(request: int, pid: int, data: int = 0) -> None:
    _checked(_LIBC.ptrace(request, pid, None, ctypes.c_void_p(data)), "ptrace")


def registers(pid: int) -> list[int]:
    """Those of a stopped process, each of 8 bytes."""
    room = (ctypes.c_uint64 * 68)()
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(room), ctypes.sizeof(room))
    _checked(_LIBC.ptrace(PTRACE_GETREGSET, pid, ctypes.c_void_p(1), vector), "ptrace")
    return list(room[: vector[1] // 8])


def set_registers(pid: int, values: Sequence[int]) -> None:
    room = (ctypes.c_uint64 * len(values))(*values)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(room), ctypes.sizeof(room))
    _checked(_LIBC.ptrace(PTRACE_SETREGSET, pid, ctypes.c_void_p(1), vector), "ptrace")


def event_message(pid: int) -> int:
    """The process that a fork made."""
    found = ctypes.c_ulong()
    _checked(_LIBC.ptrace(0x4201, pid, None, ctypes.byref(found)), "ptrace")
    return found.value
