"""Counts the processes that the kernel killed for lack of memory, the only trace that such a SIGKILL leaves."""

from __future__ import annotations

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def oom_kills(*, cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> int:
    """Returns the number of OOM kills so far: of our own cgroup (v2, v1) if it has a count, else of the whole machine,
    other users' processes included; 0 if neither is known. All count kills for a cgroup's limit and for the machine's
    (Linux 4.13 and later)."""
    lines = (line.split(":", 2) for line in _lines(proc / "self" / "cgroup"))
    own = {controllers: path.lstrip("/") for _, controllers, path in lines}
    first = cgroups / "memory"
    kept = (
        cgroups / own.get("", "") / "memory.events",
        first / own.get("memory", "") / "memory.oom_control",
        first / "memory.oom_control",  # path at which a container sees its own cgroup
        proc / "vmstat",
    )
    counts = (int(line.split()[1]) for file in kept for line in _lines(file) if line.startswith("oom_kill "))
    return next(counts, 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
