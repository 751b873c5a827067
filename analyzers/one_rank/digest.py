"""Keeps what the analysis of a job needs of one rank after its timeline is freed: its report, steps and collectives.

A digest is small and can be passed between processes. Many traces are therefore read one per core, with at most as many
timelines in memory as cores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analyzers.diagnosis import Partition, TraceReport
from analyzers.intervals import EMPTY, Floats, Intervals, intersect, merge, subtract, window
from analyzers.kernel_classes import ARITHMETIC, COMPUTE_CLASSES, GROUPED_GEMM, KINDS, PIPELINE, RECOMPUTE
from analyzers.one_rank.breakdown import Breakdown
from analyzers.one_rank.gains import gains, gains_by_compute, kernels_of
from analyzers.one_rank.pace import Pace
from analyzers.one_rank.progress import RankProgress, rank_progress
from analyzers.one_rank.rank_step import RankStep
from analyzers.readers.losses import cut_words
from analyzers.repeats import ONCE, Repeats
from analyzers.steps import Step
from analyzers.timeline import Ints, Message, Spans

_SENDS = re.compile(r"send|recv", re.IGNORECASE)  # names of kernels and of gloo's ranges that send or receive


@dataclass(frozen=True, kw_only=True)
class Call:
    """A kind of collective call: what is the same for all ranks that take part in it."""

    kind: str  # one of KINDS
    what: str  # NCCL's name for it, or the peers of a send or receive, else the kernel's name
    group: str = ""  # name and ranks of the process group, empty if not known
    ranks: tuple[int, ...] = ()  # sender and receiver, or those of the process group, as far as they are known
    group_size: int | None = None
    size_bytes: int | None = None
    by_order: bool = True  # its ranks issue it in one order; a pipeline's sends and receives only if peers are known

    @property
    def of_any_size(self) -> Call:
        return replace(self, size_bytes=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Collectives:
    """N collectives of one rank, to be matched with those of other ranks.

    start_us, end_us: float64[N], on the rank's own clock; call: int64[N], an index into calls; thread: int64[N], the
    lane that launched it, -1 if not known.
    """

    start_us: Floats
    end_us: Floats
    call: Ints
    thread: Ints
    calls: tuple[Call, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Digest:
    """Summary of one rank's trace, without its events.

    windows: its marked steps, empty if there are none; steps: one per window, or one for the whole trace. Times are
    microseconds from `origin_us`.
    """

    report: TraceReport
    windows: tuple[Step, ...]
    steps: tuple[RankStep, ...]  # waiting is not set: it needs the traces of other ranks
    origin_us: float
    collectives: Collectives
    progress: RankProgress
    exposed_by_kind: Mapping[str, Intervals]
    repeats: Repeats = ONCE
    world_size: int | None = None

    @property
    def rank(self) -> int | None:
        return self.report.rank

    @property
    def on_cpu(self) -> bool:
        return not self.report.devices

    @property
    def cut_short(self) -> str:
        """Returns `cut short at 48.4 MB` if the end of the trace, with the last or all of the device events, is
        missing; else ''."""
        return cut_words(self.report.coverage.dropped)

    def steps_waiting(self, waiting: Mapping[str, Intervals], maybe: Mapping[str, Intervals]) -> list[RankStep]:
        """Returns the steps with their exposed communication that is waiting for other ranks, and that may be, by
        kind."""
        spans = np.array([self.span_of(k) for k in range(len(self.steps))])

        def by_step(sets: Mapping[str, Intervals]) -> list[dict[str, float]]:
            exposed = {kind: intersect(when, self.exposed_by_kind.get(kind, EMPTY)) for kind, when in sets.items()}
            us = {kind: self.repeats.within(when, spans[:, 0], spans[:, 1]).tolist() for kind, when in exposed.items()}
            return [{kind: of[k] for kind, of in us.items() if of[k] > 0} for k in range(len(spans))]

        return [
            replace(step, waiting_by_kind=sure, may_wait_by_kind=perhaps)
            for step, sure, perhaps in zip(self.steps, by_step(waiting), by_step(maybe), strict=True)
        ]

    def step_of(self, time: Floats, steps: Sequence[int]) -> Ints:
        """Returns int64[N]: the step that each moment is in (an index into `steps`), -1 if in none."""
        found = np.full(len(time), -1, dtype=np.int64)
        for place, k in enumerate(steps):
            start, end = self.span_of(k)
            found[(time >= start) & (time < end)] = place
        return found

    def span_of(self, k: int) -> tuple[float, float]:
        """Returns start and end of step k; of the whole trace if no step is marked."""
        if self.windows:
            return self.windows[k].start_us, self.windows[k].end_us
        span = self.report.span
        return span.start_us, span.end_us


def digest(breakdown: Breakdown) -> Digest:
    """Returns the summary of one rank's trace that is compared with other ranks."""
    return Digest(
        report=breakdown.report(),
        windows=breakdown.windows,
        steps=tuple(_rank_steps(breakdown)),
        origin_us=breakdown.timeline.origin_us,
        collectives=_collectives(breakdown),
        progress=rank_progress(breakdown),
        exposed_by_kind=dict(breakdown.work.exposed_by_kind),
        repeats=breakdown.timeline.repeats,
        world_size=breakdown.timeline.world_size,
    )


def _collectives(breakdown: Breakdown) -> Collectives:
    work, timeline = breakdown.work, breakdown.timeline
    spans = work.collectives
    labels = np.stack([work.collective_kind, spans.name, work.collective_message])
    different, call = np.unique(labels, axis=1, return_inverse=True)
    return Collectives(
        start_us=spans.start_us,
        end_us=spans.end_us,
        call=call.ravel(),
        thread=work.collective_thread,
        calls=tuple(
            _call(
                KINDS[kind],
                spans.names[name],
                timeline.messages[message] if message >= 0 else Message(),
                timeline.rank,
            )
            for kind, name, message in different.T.tolist()
        ),
    )


def _call(kind: str, name: str, message: Message, rank: int | None) -> Call:
    peers = tuple(known for peer in message.peers or () if (known := rank if peer is None else peer) is not None)
    paired = len(peers) == 2
    return Call(
        kind=kind,
        what=f"rank {peers[0]} to rank {peers[1]}" if paired else message.collective or name,
        group=message.group,
        ranks=peers if paired else message.group_ranks,
        group_size=2 if paired else message.group_size,
        size_bytes=message.size_bytes,
        by_order=paired or kind != PIPELINE or not _SENDS.search(name),
    )


def _rank_steps(breakdown: Breakdown) -> list[RankStep]:
    """Returns each step of a rank; the whole trace as one step if none is marked."""
    work, idle = breakdown.work, breakdown.idle
    computing = merge(when for name, when in work.compute_by_class.items() if name != RECOMPUTE)
    short = intersect(work.short_kernels, computing)
    span = _passes(breakdown)
    pipeline = merge((idle.bubble, work.exposed_by_kind.get(PIPELINE, EMPTY)))
    measured = _Measured(
        breakdown,
        {
            "short_kernels_by_class": {
                name: intersect(short, work.compute_by_class[name])
                for name in COMPUTE_CLASSES
                if name in work.compute_by_class
            },
        },
        {
            "to_host_us": intersect(work.exposed_copies, work.to_host),
            "from_host_us": intersect(work.exposed_copies, work.from_host),
            "copied_to_host_us": work.to_host,
            "copied_from_host_us": work.from_host,
            "after_sync_us": breakdown.after_sync,
            "recompute_host_us": intersect(idle.host, breakdown.recompute_issue),
            "allocator_us": breakdown.allocator,
            "driver_us": breakdown.driver_calls.covered(),
            "passes_us": subtract(span, pipeline),
            "host_in_passes_us": intersect(span, idle.host),
        },
    )
    partitions = breakdown.steps or (breakdown.span,)
    driver_calls_us, repeats = np.sort(breakdown.driver_calls.start_us), breakdown.timeline.repeats
    gained, by_compute = gains(breakdown, short), gains_by_compute(breakdown, computing)
    experts = kernels_of(breakdown, (GROUPED_GEMM,))
    return [
        _rank_step(
            partition,
            {
                **measured.at(k),
                **_launching(breakdown.pace, partition, repeats),
                "driver_calls": _count_within(driver_calls_us, partition, repeats),
                **_grouped_gemms(experts, partition, repeats),
                "gain_us": {w: us[k] for w, us in gained.items()},
                "gain_by_compute_us": {share: us[k] for share, us in by_compute.items()},
            },
        )
        for k, partition in enumerate(partitions)
    ]


def _passes(breakdown: Breakdown) -> Intervals:
    """Returns the time between the first and the last kernel of the classes ARITHMETIC in each step."""
    by_class = breakdown.work.compute_by_class
    arithmetic = merge(by_class[name] for name in ARITHMETIC if name in by_class)
    parts = breakdown.steps or (breakdown.span,)
    inside = [intersect(arithmetic, window(part.start_us, part.end_us)) for part in parts]
    return merge(window(float(one.start[0]), float(one.end[-1])) for one in inside if len(one))


def _grouped_gemms(experts: Spans, partition: Partition, repeats: Repeats) -> dict[str, float]:
    """Returns the number of grouped GEMM kernels in a step, and their median duration, µs."""
    started = (experts.start_us >= partition.start_us) & (experts.start_us < partition.end_us)
    took = (experts.end_us - experts.start_us)[started]
    return {
        "grouped_gemms": repeats.number(experts.start_us[started]),
        "grouped_gemm_us": float(np.median(took)) if len(took) else 0.0,
    }


def _count_within(at_us: Floats, partition: Partition, repeats: Repeats) -> float:
    """Returns the number of moments (float64[N], sorted) in a step; a moment in a repeated window counts once per
    repetition."""
    return float(repeats.count_within(at_us, np.array(partition.start_us), np.array(partition.end_us)))


def _launching(pace: Pace, partition: Partition, repeats: Repeats) -> dict[str, float]:
    """Returns the launch figures of a step: number, interval between launches, kernel duration, and time lost to the
    launch rate."""
    return {
        "launches": _count_within(pace.at_us, partition, repeats),
        "launch_interval_us": pace.interval_us,
        "kernel_us": pace.kernel_us,
        "launch_rate_us": partition.launch_rate_us,
    }


class _Measured:
    """Sets of time, measured in every step of a breakdown."""

    def __init__(
        self, breakdown: Breakdown, maps: Mapping[str, Mapping[str, Intervals]], sets: Mapping[str, Intervals]
    ) -> None:
        self._maps = {
            name: {key: breakdown.measure(when) for key, when in parts.items()} for name, parts in maps.items()
        }
        self._sets = {name: breakdown.measure(when) for name, when in sets.items()}

    def at(self, k: int) -> dict[str, Any]:
        """Returns the fields of step k."""
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
        gemm_by_precision=partition.gemm_by_precision,
        communication_by_kind={kind: time.busy_us for kind, time in kinds.items()},
        exposed_by_kind={kind: time.exposed_us for kind, time in kinds.items()},
        host_us=causes.host_us,
        host_by_activity=partition.host_by_activity,
        sync_us=causes.sync_us,
        turnaround_us=partition.turnaround_us,
        bubble_us=causes.bubble_us,
        unattributed_us=causes.unattributed_us,
        recompute_us=partition.recompute_us,
        **measured,
    )
