"""What is kept of one rank once its timeline is let go: its report, its steps, its collectives.

A digest is small and travels between processes, so that many ranks' traces are read one a core, and memory holds
no more timelines than cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analyzers.breakdown import Breakdown
from analyzers.diagnosis import Partition, TraceReport
from analyzers.intervals import Floats, Intervals, intersect, merge
from analyzers.kernels import COMPUTE_CLASSES, RECOMPUTE
from analyzers.pace import Pace
from analyzers.rank_step import RankStep
from analyzers.readers.losses import CUT_SHORT
from analyzers.steps import Step
from analyzers.timeline import Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Collectives:
    """N collectives of one rank, to be matched with other ranks'. start_us, end_us: float64[N], on the rank's own
    clock; kind: int64[N], an index into KINDS."""

    start_us: Floats
    end_us: Floats
    kind: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Digest:
    """One rank. windows: its marked steps, none if the trace has no steps; steps: one for each window, or one for
    the whole trace; times are microseconds from `origin_us`."""

    report: TraceReport
    windows: tuple[Step, ...]
    steps: tuple[RankStep, ...]  # waiting_by_kind is empty: other ranks tell
    origin_us: float
    collectives: Collectives
    exposed_by_kind: Mapping[str, Intervals]

    @property
    def rank(self) -> int | None:
        return self.report.rank

    @property
    def on_cpu(self) -> bool:
        return not self.report.devices

    @property
    def cut_short(self) -> bool:
        """The end of the trace is missing: the device's last events are, or all of its events."""
        return any(lost.why in CUT_SHORT for lost in self.report.coverage.dropped)

    def steps_waiting(self, wait: Intervals) -> list[RankStep]:
        """The steps, with the exposed communication in `wait` told as waiting for other ranks."""
        waits = {kind: intersect(when, wait) for kind, when in self.exposed_by_kind.items()}
        found = []
        for k, step in enumerate(self.steps):
            start, end = self.span_of(k)
            by_kind = {kind: float(when.within(np.array(start), np.array(end))) for kind, when in waits.items()}
            found.append(replace(step, waiting_by_kind={kind: us for kind, us in by_kind.items() if us > 0}))
        return found

    def span_of(self, k: int) -> tuple[float, float]:
        """Start and end of step k, or of the whole trace where none is marked."""
        if self.windows:
            return self.windows[k].start_us, self.windows[k].end_us
        span = self.report.span
        return span.start_us, span.start_us + span.duration_us


def digest(breakdown: Breakdown) -> Digest:
    """What the job needs to know of a rank."""
    spans = breakdown.work.collectives
    return Digest(
        report=breakdown.report(),
        windows=breakdown.windows,
        steps=tuple(_rank_steps(breakdown)),
        origin_us=breakdown.timeline.origin_us,
        collectives=Collectives(start_us=spans.start_us, end_us=spans.end_us, kind=breakdown.work.collective_kind),
        exposed_by_kind=dict(breakdown.work.exposed_by_kind),
    )


def _rank_steps(breakdown: Breakdown) -> list[RankStep]:
    """Each step of a rank; the whole trace as one if it has none."""
    work, idle = breakdown.work, breakdown.idle
    computing = merge(when for name, when in work.compute_by_class.items() if name != RECOMPUTE)
    measured = _Measured(
        breakdown,
        {
            "short_kernels_by_class": {
                name: intersect(intersect(work.short_kernels, computing), work.compute_by_class[name])
                for name in COMPUTE_CLASSES
                if name in work.compute_by_class
            },
        },
        {
            "to_host_us": intersect(work.exposed_copies, work.to_host),
            "from_host_us": intersect(work.exposed_copies, work.from_host),
            "copied_to_host_us": work.to_host,
            "copied_from_host_us": work.from_host,
            "after_sync_us": idle.after_sync,
            "recompute_host_us": intersect(idle.host, breakdown.recompute_issue),
            "allocator_us": breakdown.allocator,
        },
    )
    partitions = breakdown.steps or (breakdown.span,)
    return [
        _rank_step(partition, {**measured.at(k), **_launching(breakdown.pace, partition)})
        for k, partition in enumerate(partitions)
    ]


def _launching(pace: Pace, partition: Partition) -> dict[str, float]:
    """How fast the host launched in a step, beside its kernels."""
    since, until = np.searchsorted(pace.at_us, (partition.start_us, partition.start_us + partition.duration_us))
    return {
        "launches": float(until - since),
        "launch_interval_us": pace.interval_us,
        "kernel_us": pace.kernel_us,
        "launch_rate_us": partition.launch_rate_us,
    }


class _Measured:
    """Sets of time measured in every step of a breakdown."""

    def __init__(
        self, breakdown: Breakdown, maps: Mapping[str, Mapping[str, Intervals]], sets: Mapping[str, Intervals]
    ) -> None:
        self._maps = {
            name: {key: breakdown.measure(when) for key, when in parts.items()} for name, parts in maps.items()
        }
        self._sets = {name: breakdown.measure(when) for name, when in sets.items()}

    def at(self, k: int) -> dict[str, Any]:
        """The fields of step k."""
        maps = {
            name: {key: values[k] for key, values in parts.items() if values[k] > 0}
            for name, parts in self._maps.items()
        }
        return {**maps, **{name: values[k] for name, values in self._sets.items()}}


def _rank_step(partition: Partition, measured: Mapping[str, Any]) -> RankStep:
    kinds = partition.communication_by_kind
    causes = partition.idle_by_cause
    return RankStep(
        duration_us=partition.duration_us,
        compute_us=partition.compute_us,
        compute_by_class=partition.compute_by_class,
        communication_by_kind={kind: time.busy_us for kind, time in kinds.items()},
        exposed_by_kind={kind: time.exposed_us for kind, time in kinds.items()},
        host_us=causes.host_us,
        host_by_activity=partition.host_by_activity,
        sync_us=causes.sync_us,
        bubble_us=causes.bubble_us,
        unattributed_us=causes.unattributed_us,
        recompute_us=partition.recompute_us,
        **measured,
    )
