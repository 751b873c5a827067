"""How often the kernel killed a process for want of memory: the only trace that such a SIGKILL leaves."""

from __future__ import annotations

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def oom_kills(*, cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> int:
    """The count so far: of our own cgroup (v2) where it is kept, else of the whole machine; 0 if neither tells.

    Both count kills for a cgroup's limit and for the machine's (Linux 4.13 and later).
    """
    own = next((line[3:] for line in _lines(proc / "self" / "cgroup") if line.startswith("0::")), "/")
    kept = _lines(cgroups / own.lstrip("/") / "memory.events") or _lines(proc / "vmstat")
    return next((int(line.split()[1]) for line in kept if line.startswith("oom_kill ")), 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
