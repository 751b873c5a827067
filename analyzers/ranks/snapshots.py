"""Adds memory snapshots to a job: to the traced ranks their memory, for other ranks a report of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from analyzers.diagnosis import Coverage, IdleByCause, MemoryUse, Partition, TraceReport
from analyzers.memory.snapshots import snapshot_use
from analyzers.one_rank.digest import Digest
from analyzers.readers.snapshots import read_snapshot

NO_TIME = Partition(
    start_us=0.0,
    duration_us=0.0,
    busy_us=0.0,
    compute_us=0.0,
    communication_us=0.0,
    exposed_communication_us=0.0,
    communication_by_kind={},
    copy_us=0.0,
    exposed_copy_us=0.0,
    idle_us=0.0,
    idle_by_cause=IdleByCause(),
)
SAYS_NO_TIME = "a memory snapshot: it has no timing"


@dataclass(frozen=True, kw_only=True)
class SnapshotReport:
    """One snapshot.

    memory: that of the device with most of it, None if the snapshot is empty; times are Unix microseconds.
    """

    path: str
    rank: int | None
    device: int | None
    memory: MemoryUse | None
    warnings: tuple[str, ...] = ()

    def as_trace_report(self) -> TraceReport:
        """Returns a report for a rank without a trace."""
        return TraceReport(
            path=self.path,
            format="snapshot",
            rank=self.rank,
            devices=[] if self.device is None else [self.device],
            span=NO_TIME,
            steps=[],
            coverage=Coverage(device_time_classified=1.0, kernels=0),
            warnings=[SAYS_NO_TIME, *self.warnings],
            memory=self.memory,
        )


def snapshot_report(path: Path) -> SnapshotReport:
    """Reads one snapshot.

    Raises:
        TraceError: it cannot be read, or could run code (see `readers.snapshots`).
    """
    snapshot = read_snapshot(path)
    history = snapshot.history
    others = snapshot.devices - 1
    return SnapshotReport(
        path=str(path),
        rank=snapshot.rank,
        device=None if history is None else history.device,
        memory=None if history is None else snapshot_use(history),
        warnings=(f"{others} more devices are in the snapshot: only the one with most memory is reported",)
        if others > 0
        else (),
    )


def attach(digests: Sequence[Digest], snapshots: Sequence[SnapshotReport]) -> tuple[list[Digest], list[TraceReport]]:
    """Returns the ranks with the memory of their snapshots, and the reports of snapshots whose ranks were not traced.

    If there is one trace and one snapshot, they belong together if either does not record its rank.
    """
    if len(digests) == len(snapshots) == 1 and None in (digests[0].rank, snapshots[0].rank):
        return [_with(digests[0], snapshots[0])], []
    merged = list(digests)
    apart = []
    for one in snapshots:
        place = next((k for k, d in enumerate(merged) if one.rank is not None and d.rank == one.rank), None)
        if place is None:
            apart.append(one.as_trace_report())
        else:
            merged[place] = _with(merged[place], one)
    return merged, apart


def _with(digest: Digest, snapshot: SnapshotReport) -> Digest:
    """Combines both sources: a snapshot knows the memory at the start of its history, a trace the size of the device
    and the steps."""
    report, memory = digest.report, snapshot.memory
    traced = report.memory
    warnings = [*report.warnings, *snapshot.warnings]
    if memory is not None and traced is not None and not traced.at_least and traced.peak_gib > memory.peak_gib:
        memory = msgspec.structs.replace(traced, out_of_memory=max(traced.out_of_memory, memory.out_of_memory))
    elif memory is not None:
        memory = _on_clock(memory, digest)
        if traced is not None:
            memory = msgspec.structs.replace(
                memory, limit_gib=traced.limit_gib, driver_allocations=traced.driver_allocations
            )
    return replace(digest, report=msgspec.structs.replace(report, memory=memory or traced, warnings=warnings))


def _on_clock(memory: MemoryUse, digest: Digest) -> MemoryUse:
    """Returns the snapshot's times, which are Unix times, on the trace's clock, and the traced step of the peak."""
    if memory.peak_at_us is None:
        return memory
    at_us = memory.peak_at_us - digest.origin_us
    step = next((w for w in digest.windows if w.start_us <= at_us <= w.end_us), None)
    curve = [(time - digest.origin_us, gib) for time, gib in memory.curve]
    if step is None:
        return msgspec.structs.replace(memory, peak_at_us=at_us, curve=curve)
    into = (at_us - step.start_us) / max(step.end_us - step.start_us, 1e-9)
    return msgspec.structs.replace(memory, peak_at_us=at_us, curve=curve, peak_step=step.name, peak_at_share=into)
