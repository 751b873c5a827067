"""Computes how much time each part of a rank's work had taken by the start and by the end of each collective.

The difference between two such moments is what the rank did in between. It explains why the rank entered a collective
later than another rank, if both left an earlier collective together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analyzers.intervals import Bools, Floats, Intervals, merge
from analyzers.kernel_classes import GEMM, GROUPED_GEMM, KINDS, PIPELINE
from analyzers.one_rank.breakdown import Breakdown
from analyzers.one_rank.rank_step import BUBBLE_PART, HOST_PART
from analyzers.timeline import Ints, Spans

EXPERTS = "experts"
DENSE = "dense"  # compute that does not depend on the routing
ROUTED = "routed"  # the rest of compute: kernels around the experts, and recompute
COPIES, SYNC, UNATTRIBUTED = "copies", "sync", "unattributed"
UNROUTED = ("attention", GEMM, "convolution", "optimizer", "embedding")


def unrouted(*, on_cpu: bool) -> tuple[str, ...]:
    """Returns the compute classes that do not depend on the routing.

    On CPUs they exclude GEMMs, since no range separates the experts' GEMMs in backward from others.
    """
    return tuple(name for name in UNROUTED if not (on_cpu and name == GEMM))


@dataclass(frozen=True, kw_only=True, eq=False)
class RankProgress:
    """The progress of one rank at its N collectives and W steps.

    parts: the names of P parts; before_start_us, before_end_us: float64[N, P], the time of each part before the start
    and before the end of each collective; before_step_us: float64[W, P], before each step; alone: bool[N], true if
    nothing else runs when a collective ends (no compute, no other collective), so that the rank waited for it.
    """

    parts: tuple[str, ...]
    before_start_us: Floats
    before_end_us: Floats
    before_step_us: Floats
    alone: Bools


def rank_progress(breakdown: Breakdown) -> RankProgress:
    """Computes the progress of a rank at its collectives, in the order of its digest."""
    sets = _parts(breakdown)
    spans = breakdown.work.collectives
    steps_us = np.array([step.start_us for step in breakdown.windows or [breakdown.span]])
    return RankProgress(
        parts=(*sets, UNATTRIBUTED),
        before_start_us=_before(sets, spans.start_us, breakdown),
        before_end_us=_before(sets, spans.end_us, breakdown),
        before_step_us=_before(sets, steps_us, breakdown),
        alone=(_running(spans) == 1) & ~breakdown.work.compute.contains(np.nextafter(spans.end_us, -np.inf)),
    )


def _running(spans: Spans) -> Ints:
    """Returns int64[N]: how many collectives, itself included, are running when each one ends."""
    started = np.searchsorted(np.sort(spans.start_us), spans.end_us, side="left")
    running: Ints = started - np.searchsorted(np.sort(spans.end_us), spans.end_us, side="left")
    return running


def _before(sets: Mapping[str, Intervals], time: Floats, breakdown: Breakdown) -> Floats:
    """Returns float64[N, P]: the time of each part before each moment; the last column is the time in no set."""
    first_us = min((float(when.start[0]) for when in sets.values() if len(when)), default=breakdown.span.start_us)
    known = np.array([when.covered_until(time) for when in sets.values()]).reshape(len(sets), len(time)).T
    rest = np.maximum(0.0, time - first_us) - known.sum(axis=1)
    return np.column_stack([known, rest])


def _parts(breakdown: Breakdown) -> dict[str, Intervals]:
    """Returns the disjoint times of each part of a step: experts, dense and routed compute, exposed communication by
    kind, copies, host activities, synchronization, bubble."""
    work, idle = breakdown.work, breakdown.idle
    by_class, dense = work.compute_by_class, unrouted(on_cpu=breakdown.timeline.device_index is None)
    routed = [name for name in by_class if name not in (GROUPED_GEMM, *dense)]
    of = {EXPERTS: (GROUPED_GEMM,), DENSE: dense, ROUTED: routed}
    computed = {part: merge(by_class[name] for name in names if name in by_class) for part, names in of.items()}
    exposed = {kind: work.exposed_by_kind[kind] for kind in KINDS if kind in work.exposed_by_kind and kind != PIPELINE}
    pipeline = [work.exposed_by_kind[PIPELINE]] if PIPELINE in work.exposed_by_kind else []
    return {
        **{part: when for part, when in computed.items() if len(when)},
        **exposed,
        COPIES: work.exposed_copies,
        **{f"{HOST_PART}{what}": when for what, when in breakdown.host.items()},
        SYNC: idle.sync,
        BUBBLE_PART: merge([idle.bubble, *pipeline]),
    }
