"""The result of an analysis: the partition of every step of every rank, and the ranked walls.

These are the JSON documents of `diagnose --json` (schema 1), field by field. All times are microseconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pandas import DataFrame


class Wall(StrEnum):
    """A kind of wall. As a verdict: the one that costs a step most, UNDETERMINED if the traces do not decide."""

    MEMORY = "memory"
    COMMUNICATION = "communication"
    HOST = "host"
    COMPUTE = "compute"
    UNDETERMINED = "undetermined"


class CommunicationTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one kind of communication: all of it, and the part that is not hidden under compute."""

    busy_us: float
    exposed_us: float


class IdleByCause(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time of the device by cause.

    host: the host had not launched the next work yet; bubble: waiting for a pipeline peer; sync: launched work waited
    for other work; unattributed: the trace shows no cause.
    """

    host_us: float = 0.0
    bubble_us: float = 0.0
    sync_us: float = 0.0
    unattributed_us: float = 0.0


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A window of time of one rank, divided exactly: duration = compute + exposed_communication + exposed_copy +
    idle."""

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
    graph_us: float = 0.0  # part of compute_us inside graphs whose kernels were not recorded one by one
    compute_by_class: dict[str, float] = {}  # attention, grouped_gemm, gemm, router, ... and recompute
    # part of compute_us or exposed communication in which forward work is recomputed in backward
    recompute_us: float = 0.0
    # time of the class gemm by format: bf16 fp16 tf32 fp32 fp8 mxfp8 nvfp4 ..., unknown
    gemm_by_precision: dict[str, float] = {}
    host_by_activity: dict[str, float] = {}  # idle_by_cause.host_us by the host's activity in that time
    launch_rate_us: float = 0.0  # part of idle_by_cause.host_us between launches at the host's usual pace
    turnaround_us: float = 0.0  # part of idle_by_cause.sync_us from one queued kernel to the next
    wall: Wall | None = None  # this step's own verdict and why; None for the span
    because: str = ""
    # part of exposed communication, by kind, until the last rank of a collective had arrived; empty where it is not
    # known
    waiting_by_kind: dict[str, float] = {}
    # further exposed communication that may be waiting, by kind: the time beyond the shortest collectives of the same
    # kind
    may_wait_by_kind: dict[str, float] = {}
    recorded_us: float | None = None  # its length on the trace's clock, if parts of it count several times

    @property
    def end_us(self) -> float:
        """Returns the end on the trace's clock."""
        return self.start_us + (self.duration_us if self.recorded_us is None else self.recorded_us)


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one kernel over the whole trace."""

    name: str
    compute_class: str  # a class of compute_by_class, or communication
    kind: str | None = None  # kind of communication; null for other kernels
    precision: str | None = None  # precision of a GEMM, if its name tells it
    count: int
    total_us: float


class RangeTime(msgspec.Struct, frozen=True, kw_only=True):
    """All ranges (NVTX, annotations) of one name: their time on the host, and the device time of the work they
    launched. Device time is counted for launches from the range's own thread, and for those from any thread that works
    for it (autograd's)."""

    name: str
    count: int
    host_us: float
    kernels: int  # device work launched from the range's own thread; copies are in none of these figures
    device_us: float
    kernels_all_threads: int
    device_all_threads_us: float


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one rank over the trace. GiB is 2**30 bytes; None if the trace does not record it."""

    source: str  # memory_events | nsys | snapshot
    peak_gib: float
    peak_at_us: float | None = None  # on the trace's clock
    peak_step: str | None = None  # the step of the peak, and how far into it (0..1)
    peak_at_share: float | None = None
    peak_phase: str | None = None  # the innermost annotation open then; else backward, an operator or a call site
    reserved_gib: float | None = None  # reserved memory at its own peak
    limit_gib: float | None = None
    fragmentation_gib: float | None = None  # reserved - allocated when reserved was largest
    allocator_retries: int | None = None
    driver_allocations: int = 0  # cudaMalloc and cudaFree calls inside steps
    held_at_peak: dict[str, float] = {}  # GiB by the phase or call site that allocated it
    curve: list[tuple[float, float]] = []  # (µs, GiB), thinned for drawing
    at_least: bool = False  # true if memory allocated before the recording is unknown and not in the figures
    out_of_memory: int = 0  # number of allocations that failed even after a retry


class UnknownKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel whose name no row of the kernel table matches; its time over the whole trace."""

    name: str
    total_us: float


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Events that no figure includes: `count` of them, of the type `what`, and why."""

    what: str
    count: int
    why: str
    at_bytes: int | None = None  # position in the file, if known; for a truncated file, its end


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a trace that the analysis could classify, and what it left out."""

    device_time_classified: float  # 0..1
    kernels: int
    kernels_unknown: list[UnknownKernel] = []
    dropped: list[Dropped] = []


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """A window of the trace that counts `times` times in every duration and count."""

    start_us: float
    end_us: float
    times: float


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a trace to analyse.

    It is limited by `range` (from the start of the first range of this name to the end of the last one), or by times
    counted from the first device event (on CPUs, from the first operator). `step_marker` is the name of the ranges that
    are its steps. None: no limit, and the usual step markers.
    """

    range: str | None = None
    step_marker: str | None = None
    from_us: float | None = None
    to_us: float | None = None

    @property
    def whole(self) -> bool:
        return self.range is None and self.from_us is None and self.to_us is None


WHOLE = Stretch()


class TraceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One trace of one rank: its steps partitioned, the longest kernels and ranges, its memory."""

    path: str
    format: str  # kineto | nsys | snapshot
    rank: int | None
    devices: list[int]
    span: Partition
    steps: list[Partition]
    coverage: Coverage
    warnings: list[str] = []
    warm_up: list[str] = []  # names of the steps at the start that no average counts
    kernels: list[KernelTime] = []  # the longest kernels of every class, longest first
    ranges: list[RangeTime] = []  # those with most time on the host first
    memory: MemoryUse | None = None
    # micro batches of a step, and how many of them were recorded; null if the trace does not say
    microbatches: int | None = None
    microbatches_traced: int | None = None
    repeated: list[Repeated] = []
    stretch: Stretch = WHOLE
    steps_marked: bool = True  # false if nothing marks steps and repeating ranges were taken as steps
    simulated: bool = False  # true if a simulation wrote it: nothing was measured
    # compute capability of its GPU, such as [9, 0]; null if the trace does not say
    compute_capability: tuple[int, int] | None = None


class RankTime(msgspec.Struct, frozen=True, kw_only=True):
    """The average step of one rank compared with the others; known if several ranks of the job were traced."""

    rank: int
    device: int | None = None  # device number, if one process has several
    clock_offset_us: float | None  # added to its clock to align it with the first rank's; None if not matched
    step_us: float
    own_us: float  # the step without waiting for other ranks
    waiting_us: float
    waiting_by_kind: dict[str, float] = {}
    expert_compute_us: float = 0.0
    late_us: float = 0.0  # how much later than the median rank it arrives at the collectives of late_to, a step's sum
    late_to: str | None = None  # the kind of communication it comes latest to
    late_in: str | None = None  # the part in which it falls behind: experts, attention, host:data_loading, ...


class WallFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One wall. `recoverable_us` is R, the most time that an average step of the slowest rank could gain."""

    wall: Wall
    recoverable_us: float
    share: float  # recoverable_us as a fraction of the step's time, 0..1
    # upper bound on the speed-up without this wall, T / (T - R) - 1 with the step's time T; null: no limit. Bounds of
    # several walls do not add up, because they share recoverable time
    speedup_bound: float | None = None
    evidence: list[str]
    parts: dict[str, float] = {}  # recoverable_us by cause: ep_dispatch, ep_combine, tp, recompute, launching, ...
    # part of recoverable_us that is gained even if an untraced pipeline stage is as slow as the slowest rank and spends
    # its time like a traced one; null if no such stage is possible
    least_us: float | None = None
    # part of the pipeline's bubble that disappears with it, because the other stages' passes shrink as well
    bubble_us: float = 0.0


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a loss that is not one of the walls, or of a wall on some ranks only.

    name: late_host | experts_load | slow_device | uneven_work | slow_links | late_copies | late_allocator: why `ranks`
    make the others wait; bubble | uneven_stages: the pipeline; untraced_ranks: the traces of `trace_ranks` would
    decide; too_close: one of the walls of `between`; other_streams | turnaround | copies | unattributed: idle time or
    copies of that name; unknown: waiting that the traces do not explain.
    """

    name: str
    headline: str  # shown in place of a wall's name, such as `imbalance: experts of rank 2`
    lost_us: float = 0.0  # time that an average step loses
    share: float = 0.0
    ranks: list[int] = []  # the late ranks, the one that is waited for most first
    evidence: list[str] = []
    trace_ranks: list[int] = []  # ranks whose traces would decide between causes; empty if unknown


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict.

    `margin` is the difference between the shares of the two leading walls, each with the part of the bubble that it
    would save. Below a threshold the wall is undetermined, and `because` says so, except if the second one is
    communication that may be waiting.
    """

    wall: Wall
    margin: float
    because: str
    walls: list[WallFinding] = []  # ranked by recoverable_us; out of memory and a step of nearly all compute come first
    quoted: list[int] = []  # indices of the named wall's lines of evidence that `because` contains already
    doubt: str = ""  # why no wall is named, as a key: cut_short, low_coverage, too_close, ... (analyzers/verdict.py)
    cut_short: str = ""  # `cut short at 48.4 MB` if the end of a trace is missing, else empty
    ranks: list[int] = []  # the ranks that have the wall, if only some have it
    between: list[Wall] = []  # the two walls, if they are too close to decide between
    cause: Cause | None = None
    # µs per average step that ranks wait for late ones, by the cause of lateness, and for their pipeline (bubble);
    # names as in `Cause`. Includes losses that the verdict does not name
    waits: dict[str, float] = {}

    @property
    def headline(self) -> str:
        """Returns the name of the verdict: its cause's if it has one, else its wall."""
        return self.cause.headline if self.cause is not None else self.wall.value

    def finding(self, wall: Wall) -> WallFinding | None:
        return next((w for w in self.walls if w.wall is wall), None)


class JudgedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One of the steps that the verdict averages, on its slowest rank.

    trace: an index into `traces`; step: its name, empty for a trace without marked steps.
    """

    trace: int
    step: str


class RankTimes(list[RankTime]):
    """The ranks of a job: a list that can also be called for a table."""

    def __call__(self) -> DataFrame:
        """Returns a pandas DataFrame with one row per rank; empty unless several were traced."""
        from analyzers.frames import ranks_frame

        return ranks_frame(self)


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document of `diagnose --json`.

    In a notebook, `steps()`, `kernels()` and `ranks()` return it as pandas DataFrames with units in the column names.
    """

    schema: int = 1
    diagnosis: Diagnosis
    traces: list[TraceReport]
    ranks: list[RankTime] = []
    judged: list[JudgedStep] = []

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "ranks", RankTimes(self.ranks))

    @property
    def simulated(self) -> bool:
        """Returns true if a simulation wrote any of the traces."""
        return any(trace.simulated for trace in self.traces)

    def steps(self) -> DataFrame:
        """Returns a row for each step of each trace: its partition, exposed communication by kind, idle time by
        cause."""
        from analyzers.frames import steps_frame

        return steps_frame(self.traces, self.judged)

    def kernels(self) -> DataFrame:
        """Returns a row for each kernel of each trace that is among the longest of its class."""
        from analyzers.frames import kernels_frame

        return kernels_frame(self.traces)
