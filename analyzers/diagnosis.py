"""What the analyzers say of a job: the partition of every step of every rank, and the walls ranked.

These are the JSON documents of `diagnose --json` (schema 1), field for field. All times are microseconds.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Wall(StrEnum):
    MEMORY = "memory"
    COMMUNICATION = "communication"
    HOST = "host"
    COMPUTE = "compute"
    UNDETERMINED = "undetermined"


class CommunicationTime(msgspec.Struct, frozen=True, kw_only=True):
    busy_us: float
    exposed_us: float


class IdleByCause(msgspec.Struct, frozen=True, kw_only=True):
    host_us: float = 0.0
    bubble_us: float = 0.0
    sync_us: float = 0.0
    unattributed_us: float = 0.0


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of time of one rank, divided without rest:
    duration = compute + exposed_communication + exposed_copy + idle."""

    name: str = ""
    start_us: float
    duration_us: float
    busy_us: float
    compute_us: float
    communication_us: float
    exposed_communication_us: float
    communication_by_kind: dict[str, CommunicationTime]  # ep_dispatch ep_combine ep_notify tp cp pp dp all_to_all other
    copy_us: float
    exposed_copy_us: float
    idle_us: float
    idle_by_cause: IdleByCause
    graph_us: float = 0.0
    compute_by_class: dict[str, float] = {}  # attention, grouped_gemm, gemm, router, ... and recompute
    recompute_us: float = 0.0  # inside compute_us or exposed communication: forward work done again in backward


class UnknownKernel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    total_us: float


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    count: int
    why: str


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    device_time_classified: float  # 0..1
    kernels: int
    kernels_unknown: list[UnknownKernel] = []
    dropped: list[Dropped] = []


class TraceReport(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    format: str  # kineto | nsys
    rank: int | None
    devices: list[int]
    span: Partition
    steps: list[Partition]
    coverage: Coverage
    warnings: list[str] = []


class WallFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One wall: `recoverable_us` is R, the time of an average step (slowest rank) it could give back at most."""

    wall: Wall
    recoverable_us: float
    share: float  # recoverable_us over the step's time, 0..1
    evidence: list[str]
    parts: dict[
        str, float
    ] = {}  # recoverable_us by cause: ep_dispatch, ep_combine, tp, dp, recompute, copy, launch, ...


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict. `margin` is the leading wall's share minus the next one's; below the threshold the wall is
    undetermined, and `because` says so."""

    wall: Wall
    margin: float
    because: str
    walls: list[WallFinding] = []  # ranked by recoverable_us

    def finding(self, wall: Wall) -> WallFinding | None:
        return next((w for w in self.walls if w.wall is wall), None)


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document of `diagnose --json`."""

    schema: int = 1
    diagnosis: Diagnosis
    traces: list[TraceReport]
