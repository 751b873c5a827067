"""One step of one rank as the walls use it: its time by part; and the average of several steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from analyzers.kernel_classes import ARITHMETIC, PIPELINE, RECOMPUTE
from analyzers.names.host_activities import ALLOCATOR

BUBBLE_PART = "bubble"  # key of waiting_by_cause: a late rank waits for its pipeline
HOST_PART = "host:"  # prefix of keys of waiting_by_cause: the activity of a late rank's host
OFFLOAD = "offload"  # key of gain_us: the work that the memory wall counts, and exposed copies
# least ratio of the copies in the smaller direction to those in the larger one: offloaded data is copied both ways,
# weights and input in one direction
OFFLOAD_BALANCE = 0.2


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """One step of one rank, or an average of several. All fields are microseconds unless noted."""

    duration_us: float
    compute_us: float = 0.0
    compute_by_class: Mapping[str, float] = field(default_factory=dict)
    gemm_by_precision: Mapping[str, float] = field(default_factory=dict)
    grouped_gemms: float = 0.0  # number of grouped GEMM kernels, and the median time of one
    grouped_gemm_us: float = 0.0
    communication_by_kind: Mapping[str, float] = field(default_factory=dict)  # whole time, hidden or exposed
    exposed_by_kind: Mapping[str, float] = field(default_factory=dict)
    # part of exposed communication: waiting for a slower rank
    waiting_by_kind: Mapping[str, float] = field(default_factory=dict)
    # part of the rest of exposed communication: possible waiting
    may_wait_by_kind: Mapping[str, float] = field(default_factory=dict)
    # waiting for late ranks by its cause, without waiting in pp
    waiting_by_cause: Mapping[str, float] = field(default_factory=dict)
    to_host_us: float = 0.0  # part of exposed copies: from the device to host memory
    from_host_us: float = 0.0
    copied_to_host_us: float = 0.0  # whole time of copies, exposed or not
    copied_from_host_us: float = 0.0
    host_us: float = 0.0
    host_by_activity: Mapping[str, float] = field(default_factory=dict)
    after_sync_us: float = 0.0  # part of host: gaps that started while the host was in a synchronising call
    launch_rate_us: float = 0.0  # part of host: between launches that follow each other at the usual pace
    launches: float = 0.0  # calls that launched device work
    launch_interval_us: float = 0.0  # medians over the trace: from one launch to the next, and of a kernel
    kernel_us: float = 0.0
    sync_us: float = 0.0
    turnaround_us: float = 0.0  # part of sync: from one queued kernel to the next
    bubble_us: float = 0.0
    unattributed_us: float = 0.0
    passes_us: float = 0.0  # time from the first arithmetic kernel to the last, without waiting for pipeline peers
    host_in_passes_us: float = 0.0  # part of host between the first and the last arithmetic kernel
    imbalance_us: float = 0.0  # time that the step would save if ranks were loaded evenly
    recompute_us: float = 0.0
    recompute_host_us: float = 0.0  # part of host: while forward work was launched again
    allocator_us: float = 0.0  # device idle while the host was in cudaMalloc or cudaFree
    driver_calls: float = 0.0  # number of cudaMalloc, cudaFree and similar calls; driver_us: their time
    driver_us: float = 0.0
    # by wall: how much shorter the step would be without the work that the wall counts, with the same launches and
    # waiting calls; empty if the rank is not replayed (`Breakdown.replay`). Key `offload`: without the work that the
    # memory wall counts and without exposed copies
    gain_us: Mapping[str, float] = field(default_factory=dict)
    # how much shorter the step would be without a share of each kernel that is not arithmetic; at key 1 + share,
    # without all of those and a share of each arithmetic kernel. Recompute is left out; empty if the rank is not
    # replayed
    gain_by_compute_us: Mapping[float, float] = field(default_factory=dict)
    short_kernels_by_class: Mapping[str, float] = field(default_factory=dict)

    @property
    def waiting_us(self) -> float:
        return sum(self.waiting_by_kind.values())

    @property
    def waiting_for_hosts(self) -> dict[str, float]:
        """Returns the time spent waiting for ranks whose hosts are late, by those hosts' activity.

        Leaves out allocator calls, which belong to the memory wall.
        """
        hosts = {
            part.removeprefix(HOST_PART): us for part, us in self.waiting_by_cause.items() if part.startswith(HOST_PART)
        }
        return {what: us for what, us in hosts.items() if what != ALLOCATOR}

    @property
    def offloads(self) -> bool:
        """Returns true if similar amounts are copied to the host and back, which is offload.

        One direction may be hidden and the other exposed.
        """
        out = max(self.to_host_us, self.copied_to_host_us)
        back = max(self.from_host_us, self.copied_from_host_us)
        return min(out, back) > OFFLOAD_BALANCE * max(out, back)

    @property
    def may_wait_us(self) -> float:
        return sum(self.may_wait_by_kind.values())

    def recovered_share(self, wall: str, counted_us: float) -> float:
        """Returns how much shorter the step gets per microsecond that a wall counts.

        It is below 1 if the host would then be the limit.
        """
        if wall not in self.gain_us or counted_us <= 0:
            return 1.0
        return max(0.0, self.gain_us[wall]) / counted_us

    def gained_by_compute_us(self, counted_us: float) -> float | None:
        """Returns how much shorter the step gets without `counted_us` of compute, taken from kernels without arithmetic
        first. None if the rank is not replayed."""
        if not self.gain_by_compute_us:
            return None
        arithmetic = sum(self.compute_by_class.get(name, 0.0) for name in ARITHMETIC)
        others = self.compute_us - arithmetic - self.compute_by_class.get(RECOMPUTE, 0.0)
        more = min(1.0, (counted_us - others) / arithmetic) if arithmetic > 0 else 0.0
        share = counted_us / others if counted_us < others else 1 + more
        shares = sorted(self.gain_by_compute_us)
        return float(np.interp(share, [0.0, *shares], [0.0, *(self.gain_by_compute_us[one] for one in shares)]))

    @property
    def may_wait_share(self) -> float:
        """Returns possible waiting as a share of the exposed communication that is not known to be waiting, 0..1."""
        own = sum(self.exposed_by_kind.values()) - self.waiting_us
        return min(1.0, self.may_wait_us / own) if own > 0 else 0.0

    @property
    def pipeline_wait_us(self) -> float:
        """Returns the bubble: time in which the device is idle, or occupied by a send or receive, until a pipeline peer
        is ready. Includes waiting in other collectives for a rank that itself waits for its pipeline."""
        return self.bubble_us + self.waiting_by_kind.get(PIPELINE, 0.0) + self.waiting_by_cause.get(BUBBLE_PART, 0.0)

    def bubble_with_us(self, gained_us: float) -> float:
        """Returns how much shorter the pipeline bubble gets if the forward and backward passes get shorter by
        `gained_us`: the bubble is the time of other stages' passes."""
        return self.pipeline_wait_us * min(1.0, gained_us / self.passes_us) if self.passes_us > 0 else 0.0

    @property
    def own_us(self) -> float:
        """Returns the step time without waiting for other ranks."""
        return self.duration_us - self.waiting_us - self.bubble_us

    @property
    def certainly_own_us(self) -> float:
        """Returns the step time without known and without possible waiting for other ranks."""
        return self.own_us - self.may_wait_us


def average(steps: Sequence[RankStep]) -> RankStep:
    """Returns the mean of every field over the steps; a key that a step lacks counts as 0."""
    means: dict[str, Any] = {}
    for one in fields(RankStep):
        values = [getattr(step, one.name) for step in steps]
        if isinstance(values[0], Mapping):
            keys = dict.fromkeys(key for value in values for key in value)
            means[one.name] = {key: _mean([value.get(key, 0.0) for value in values]) for key in keys}
        else:
            means[one.name] = _mean(values)
    return RankStep(**means)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
