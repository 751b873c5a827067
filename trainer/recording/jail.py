"""Isolates a launch script: its changes are discarded, and it reaches no network and no process outside.

Three kinds, of which the first that the system allows is used: namespaces (an overlay over every folder, no network,
own processes), Landlock (files can be read, and written only in one scratch folder), and none for a trusted script.
"""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Collection
from contextlib import suppress
from enum import StrEnum

from trainer.recording import kernel

BASE = "/sys"  # a folder that exists everywhere; it is hidden in the new mount namespace only
SCRATCH = "/.moe-autotune"  # path of the scratch layer inside the namespaces
DEVICES = ("null", "zero", "full", "random", "urandom")
MAX_OVERLAYS = 400
MEMORY = 4 << 30  # bytes of address space of a process
FILES = 256 << 20  # bytes of the scratch layer, and of a file


class Isolation(StrEnum):
    """Kind of isolation of a script."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    NONE = "none"


def enter_namespaces(host: str, needed: Collection[str]) -> int:
    """Gives this process, which must have one thread only, a temporary copy of the file system, in which those of
    `needed` that are absolute paths exist; its next child is the first process of a pid namespace.

    Returns a descriptor of the old /proc. Raises OSError if the system does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    old_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    try:
        kernel.unshare(kernel.NEW_USER | kernel.NEW_NAMESPACES)
    except OSError:
        kernel.unshare(kernel.NEW_NAMESPACES)  # root needs no user namespace
    else:
        every = user == 0 and _write("/proc/self/uid_map", "0 0 4294967295")
        if every:
            _write("/proc/self/gid_map", "0 0 4294967295")
        else:
            _write("/proc/self/uid_map", f"{user} {user} 1")
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/gid_map", f"{group} {group} 1")
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    points = _mount_points()
    kernel.mount("tmpfs", BASE, "tmpfs", kernel.NO_SUID | kernel.NO_DEV, f"size={FILES},mode=755")
    root = f"{BASE}/root"
    for folder in ("layers", "root", "root/proc", "root/sys", "root/dev", "root/dev/shm", "root/run", f"root{SCRATCH}"):
        os.mkdir(f"{BASE}/{folder}")
    _copy("/", root, points, needed)
    _devices(root)
    os.chroot(root)
    os.chdir("/")
    kernel.set_host_name(host)
    return old_proc


def first_process(pid: int) -> None:
    """Prepares the first process of the namespace: its /proc, and the number of the next process."""
    kernel.mount("proc", "/proc", "proc", kernel.NO_SUID | kernel.NO_DEV)
    _write("/proc/sys/kernel/ns_last_pid", str(pid - 1))
    kernel.make_read_only("/proc")


def limits() -> None:
    for limit, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, FILES), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):
            resource.setrlimit(limit, (most, most))


def _write(path: str, text: str) -> bool:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        return False
    return True


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo") as file:
        found = [line.split()[4].encode().decode("unicode_escape") for line in file]
    return [point for point in found if not point.startswith(("/proc", "/sys", "/dev", "/run")) and point != "/"]


def _copy(source: str, target: str, points: Collection[str], needed: Collection[str]) -> None:
    """Copies the folder's contents below `target` as one overlay per folder. A folder that overlayfs refuses, and a
    file, is mounted read-only. A folder stays empty if its path has a colon or comma. Of a folder with mount points
    inside and more than MAX_OVERLAYS entries, only those on the way to `needed` paths are copied."""
    for entry in _entries(source, needed):
        path, place = os.path.join(source, entry.name), os.path.join(target, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(path), place)
        elif entry.is_dir() and not os.path.lexists(place):
            os.mkdir(place)
            if any(point.startswith(f"{path}/") for point in points):
                _copy(path, place, points, needed)
            else:
                _layer(path, place)
        elif entry.is_file() and stat.S_ISREG(entry.stat().st_mode):
            with open(place, "wb"):
                pass
            kernel.mount(path, place, None, kernel.BIND)
            kernel.make_read_only(place)


def _entries(folder: str, needed: Collection[str]) -> list[os.DirEntry[str]]:
    try:
        found = list(os.scandir(folder))
    except OSError:
        return []
    if len(found) <= MAX_OVERLAYS:
        return found
    return [entry for entry in found if any(f"{path}/".startswith(f"{entry.path}/") for path in needed)]


def _layer(path: str, place: str) -> None:
    layer = f"{BASE}/layers/{len(os.listdir(f'{BASE}/layers'))}"
    for folder in (layer, f"{layer}/up", f"{layer}/work"):
        os.mkdir(folder)
    if ":" in path or "," in path:
        return
    options = f"lowerdir={path},upperdir={layer}/up,workdir={layer}/work"
    for data in (f"{options},userxattr", options):
        with suppress(OSError):
            kernel.mount("overlay", place, "overlay", kernel.NO_SUID | kernel.NO_DEV, data)
            return
    with suppress(OSError):  # a file system that overlayfs refuses: mounted read-only
        kernel.mount(path, place, None, kernel.BIND)
        kernel.make_read_only(place)


def _devices(root: str) -> None:
    for name in DEVICES:
        with open(f"{root}/dev/{name}", "wb"):
            pass
        kernel.mount(f"/dev/{name}", f"{root}/dev/{name}", None, kernel.BIND)
        kernel.make_read_only(f"{root}/dev/{name}", devices=True)  # root could change the mode of the machine's own
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"{root}/dev/{name}")
