"""A burst and its outcome: one recipe run for a few steps, and what happened.

`Burst` goes from the loop to an engine; `Outcome` comes back and is also written to the run folder as
`outcome.json`, where the analyzers and the report find it. Times are microseconds, memory is GiB (2**30 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from trainer.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Burst:
    """One recipe to run: `folder` is its run folder (`bursts/0007`), made by the engine if absent."""

    number: int
    recipe: Recipe
    folder: Path
    seed: int = 1234


class FailureKind(StrEnum):
    OOM = "oom"
    HANG = "hang"
    CRASH = "crash"
    NAN = "nan"
    DIVERGED = "diverged"
    IMPORT = "import"
    CONFIG = "config"
    INFRASTRUCTURE = "infrastructure"
    INTERRUPTED = "interrupted"


class BurstPhase(StrEnum):
    """Where in a burst a rank was; a rank writes it down as it goes, so that a killed rank still tells."""

    START = "start"
    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    TRACE = "trace"
    CHECK = "check"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a burst gave no figure. `rank` is the one that failed first, `evidence` the line that shows it."""

    kind: FailureKind
    phase: BurstPhase | None = None
    rank: int | None = None
    evidence: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a burst gave: either `failure`, or measured steps.

    Arrays by step cover the measured steps only (never warm-up, never profiled steps); a step lasts until its
    slowest rank is done. Lists by rank are in rank order.
    """

    schema: int = 1
    failure: Failure | None = None
    step_us: list[float] = []  # per measured step
    cpu_us: list[
        float
    ] = []  # per measured step, CPU time summed over ranks: steadier than wall time on a busy machine
    loss: list[float] = []  # per step from the first, warm-up included
    peak_gib: list[float] = []  # per rank
    limit_gib: float | None = None  # per rank
    tokens_per_step: int = 0
    ranks: int = 0
    tokens_per_s_per_gpu: float | None = None  # from the median step
    model_tflops_per_gpu: float | None = None
    attainable_tflops_per_gpu: float | None = None  # GEMM rate measured (CPU) or from the hardware table
    startup_s: float = 0.0  # spent on starting ranks and importing; 0 for a warm burst
    setup_s: float = 0.0  # spent on building model and optimizer
    warm: bool = False  # ran on ranks that an earlier burst had started
    layers: str | None = None  # "transformer_engine" or "local"
    versions: dict[str, str] = {}
    acting: dict[str, str | int | float | bool | None] = {}  # knobs as the built model reports them
    warnings: list[str] = []

    @property
    def ok(self) -> bool:
        return self.failure is None
