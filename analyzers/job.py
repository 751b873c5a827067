"""The job as the walls see it: an average step as its slowest rank lived it, and what the run folder adds.

In each step the slowest rank is the one with most time of its own, that is without waiting for others; averages
are over steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from analyzers.breakdown import Breakdown
from analyzers.diagnosis import Partition
from analyzers.intervals import Intervals, intersect, merge
from analyzers.kernels import COMPUTE_CLASSES, RECOMPUTE
from analyzers.outcome import RunOutcome
from analyzers.waiting import Rank, waiting
from analyzers.wording import ms, percent


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """One step of one rank, or an average of some. All microseconds."""

    duration_us: float
    compute_us: float = 0.0
    compute_by_class: Mapping[str, float] = field(default_factory=dict)
    communication_by_kind: Mapping[str, float] = field(default_factory=dict)  # as it ran
    exposed_by_kind: Mapping[str, float] = field(default_factory=dict)
    waiting_by_kind: Mapping[str, float] = field(default_factory=dict)  # of exposed: for a slower rank
    to_host_us: float = 0.0  # of exposed copies: from the device to host memory
    from_host_us: float = 0.0
    host_us: float = 0.0
    host_by_activity: Mapping[str, float] = field(default_factory=dict)
    after_sync_us: float = 0.0  # of host: began while the host was in a synchronising call
    sync_us: float = 0.0
    bubble_us: float = 0.0
    unattributed_us: float = 0.0
    recompute_us: float = 0.0
    recompute_host_us: float = 0.0  # of host: while forward work was issued again
    allocator_us: float = 0.0  # device idle while the host was in cudaMalloc or cudaFree
    short_kernels_by_class: Mapping[str, float] = field(default_factory=dict)

    @property
    def waiting_us(self) -> float:
        return sum(self.waiting_by_kind.values())

    @property
    def own_us(self) -> float:
        """The step without waiting for other ranks."""
        return self.duration_us - self.waiting_us - self.bubble_us


@dataclass(frozen=True, kw_only=True)
class Job:
    """step is None if the run left no traces. slowest: the rank that was slowest most often, None if not known."""

    step: RankStep | None = None
    steps: int = 0  # averaged over; 0 if none were marked and the whole trace was taken as one
    slowest: int | None = None
    by_rank: Mapping[int, RankStep] = field(default_factory=dict)  # the average step of each rank
    classified: float = 1.0  # share of device time explained, the worst rank's
    on_cpu: bool = False
    outcome: RunOutcome = field(default_factory=RunOutcome)

    def share(self, us: float) -> float:
        """Part of the average step, 0..1."""
        return us / self.step.duration_us if self.step and self.step.duration_us > 0 else 0.0

    def of_step(self, us: float) -> str:
        """`21 of 140 ms a step (15 %)`."""
        whole = self.step.duration_us if self.step else 0.0
        return f"{ms(us)} of {ms(whole)} ms{' a step' if self.steps else ''} ({percent(self.share(us))})"


def summarise(breakdowns: Sequence[Breakdown], outcome: RunOutcome | None) -> Job:
    """The average step of the slowest rank; breakdowns of the ranks of one job, in any order."""
    outcome = outcome or RunOutcome()
    if not breakdowns:
        return Job(outcome=outcome)
    shared = _shared_steps(breakdowns)
    waits = waiting([_rank(b, chosen) for b, chosen in zip(breakdowns, shared, strict=True)])
    table = [
        [steps[k] for k in chosen] for steps, chosen in zip(map(_rank_steps, breakdowns, waits), shared, strict=True)
    ]
    slowest = [int(np.argmax([row[k].own_us for row in table])) for k in range(len(shared[0]))]
    ranks = [b.timeline.rank for b in breakdowns]
    return Job(
        step=average([table[r][k] for k, r in enumerate(slowest)]),
        steps=len(slowest) if breakdowns[0].windows else 0,
        slowest=ranks[Counter(slowest).most_common(1)[0][0]],
        by_rank={rank: average(row) for rank, row in zip(ranks, table, strict=True) if rank is not None},
        classified=min(b.work.coverage.device_time_classified for b in breakdowns),
        on_cpu=all(b.timeline.device_index is None for b in breakdowns),
        outcome=outcome,
    )


def average(steps: Sequence[RankStep]) -> RankStep:
    """The mean of every field; a key that a step lacks counts as 0."""
    means: dict[str, Any] = {}
    for one in fields(RankStep):
        values = [getattr(step, one.name) for step in steps]
        if isinstance(values[0], Mapping):
            keys = dict.fromkeys(key for value in values for key in value)
            means[one.name] = {key: _mean([value.get(key, 0.0) for value in values]) for key in keys}
        else:
            means[one.name] = _mean(values)
    return RankStep(**means)


def _shared_steps(breakdowns: Sequence[Breakdown]) -> list[list[int]]:
    """For each rank the numbers of the steps that all have: by name, or by order if no name is shared."""
    names = [[step.name for step in b.steps] for b in breakdowns]
    shared = [name for name in names[0] if all(name in others for others in names)]
    if shared:
        return [[own.index(name) for name in shared] for own in names]
    fewest = min(len(own) for own in names)
    return [list(range(max(fewest, 1))) for _ in names]


def _rank(breakdown: Breakdown, chosen: Sequence[int]) -> Rank:
    steps = [breakdown.windows[k] for k in chosen] if breakdown.windows else []
    return Rank(work=breakdown.work, origin_us=breakdown.timeline.origin_us, steps=steps)


def _rank_steps(breakdown: Breakdown, wait: Intervals) -> list[RankStep]:
    """Each step of a rank; the whole trace as one if it has none."""
    work, idle = breakdown.work, breakdown.idle
    computing = merge(when for name, when in work.compute_by_class.items() if name != RECOMPUTE)
    measured = _Measured(
        breakdown,
        {
            "waiting_by_kind": {k: intersect(when, wait) for k, when in work.exposed_by_kind.items()},
            "host_by_activity": breakdown.host,
            "short_kernels_by_class": {
                name: intersect(intersect(work.short_kernels, computing), work.compute_by_class[name])
                for name in COMPUTE_CLASSES
                if name in work.compute_by_class
            },
        },
        {
            "to_host_us": intersect(work.exposed_copies, work.to_host),
            "from_host_us": intersect(work.exposed_copies, work.from_host),
            "after_sync_us": idle.after_sync,
            "recompute_host_us": intersect(idle.host, breakdown.recompute_issue),
            "allocator_us": breakdown.allocator,
        },
    )
    partitions = breakdown.steps or (breakdown.span,)
    return [_rank_step(partition, measured.at(k)) for k, partition in enumerate(partitions)]


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
        sync_us=causes.sync_us,
        bubble_us=causes.bubble_us,
        unattributed_us=causes.unattributed_us,
        recompute_us=partition.recompute_us,
        **measured,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
