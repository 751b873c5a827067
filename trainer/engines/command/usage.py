"""Reads the file that the injected sitecustomize writes for each rank: `ranks/rank<r>.usage.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one rank after its last measured step, or at an earlier exit; `reserved_gib` and `outside_gib` only
    on GPUs."""

    rank: int
    cpu_s: list[float] = []  # CPU seconds of each training step in this rank's process
    resident_gib: float = 0.0  # peak resident memory of the process, beyond that before training
    reserved_gib: float | None = None  # peak of the memory that the allocator reserved
    outside_gib: float | None = None  # GPU memory outside the allocator
    versions: dict[str, str] = {}

    @property
    def peak_gib(self) -> float:
        """Returns the peak as engine `megatron` counts it: the memory that the allocator reserved, which other
        processes cannot have; on CPUs the resident memory."""
        return self.resident_gib if self.reserved_gib is None else self.reserved_gib


def read_usage(folder: Path, ranks: int) -> dict[int, Usage]:
    """Reads the usage by rank; ranks that ended before they wrote theirs are absent."""
    found = {}
    for rank in range(ranks):
        path = folder / f"rank{rank}.usage.json"
        if path.exists():
            found[rank] = msgspec.json.decode(path.read_bytes(), type=Usage)
    return found
