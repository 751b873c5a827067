"""Files of one rank for one burst: written by the worker to `<burst>/ranks/`, read by the engine.

`rank<r>.phase` holds the current phase of the rank, rewritten in place at each change, so that it is known even of a
killed rank. `rank<r>.json` is the report of this module, written once and atomically (temporary name, then rename).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainer.burst import BurstPhase, Difference


class RankError(msgspec.Struct, frozen=True, kw_only=True):
    type: str  # exception class, e.g. "RuntimeError"
    message: str
    phase: BurstPhase
    at_s: float  # time.time(), to find the first of several failing ranks
    traceback: str = ""


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    error: RankError | None = None
    diverged: str | None = None  # the replica check's finding
    step_us: list[float] = []
    cpu_us: list[float] = []
    loss: list[float] = []  # on ranks that hold the loss, else empty
    peak_gib: float = 0.0
    outside_gib: float | None = None  # memory of its GPU outside the allocator
    limit_gib: float | None = None
    cores: float | None = None  # this rank's equal share of the node's cores
    startup_s: float = 0.0
    setup_s: float = 0.0
    attainable_tflops: float | None = None
    layers: str | None = None
    versions: dict[str, str] = {}
    acting: dict[str, str | int | float | bool | None] = {}
    differences: list[Difference] = []
    warnings: list[str] = []


def report_path(burst_folder: Path, rank: int) -> Path:
    return burst_folder / "ranks" / f"rank{rank}.json"


def phase_path(burst_folder: Path, rank: int) -> Path:
    return burst_folder / "ranks" / f"rank{rank}.phase"
