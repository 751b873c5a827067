"""Sorts a GPU's device events into sets of time: compute by class, communication by kind, copies, graphs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analyzers.diagnosis import Coverage, UnknownKernel
from analyzers.intervals import EMPTY, Bools, Intervals, intersect, merge
from analyzers.kernel_classes import (
    COMMUNICATION,
    COMPUTE_CLASSES,
    GEMM,
    KINDS,
    PRECISIONS,
    RECOMPUTE,
    UNKNOWN_PRECISION,
)
from analyzers.names import kernels
from analyzers.names.contexts import in_context
from analyzers.one_rank import communication
from analyzers.one_rank.communication import Collectives
from analyzers.one_rank.expert_exchange import Launched
from analyzers.one_rank.kernel_times import kernel_times, summed_us
from analyzers.one_rank.launches import Launches
from analyzers.one_rank.recompute import recompute_by_lane
from analyzers.one_rank.work import Work, disjoint, grouped
from analyzers.repeats import Repeats
from analyzers.timeline import Activity, Ints, Spans, Timeline, in_use

# a kernel this short is over before the next can be launched (a launch costs "several microseconds",
# arXiv 2603.07685 §4.3.6): the device's time goes into starting work, not into doing it
SHORT_KERNEL_US = 8.0
UNKNOWN_KERNELS_SHOWN = 10
GRAPH_CLASS = "graph"


def work(timeline: Timeline, launch: Launches) -> Work:
    """Returns the device's events as the sets of time that a breakdown measures."""
    events, activity = timeline.device.spans, timeline.device.activity
    is_kernel = activity == Activity.KERNEL
    is_communication = is_kernel & events.where(lambda name: kernels.kernel(name).compute_class == COMMUNICATION)
    issued_again = recompute_by_lane(timeline)
    again = _launched_in(issued_again, launch)
    is_copy = activity == Activity.COPY
    is_compute = is_kernel & ~is_communication
    collectives, computing = events.take(is_communication), events.take(is_compute)
    launched = Launched(lane=launch.lane, start_us=launch.start_us)
    own = _classes(timeline, computing, launched.take(is_compute))
    kind = communication.kinds(
        Collectives(
            events=collectives,
            group=timeline.device.group[is_communication],
            message=timeline.device.message[is_communication],
            launched=launched.take(is_communication),
        ),
        timeline,
        launched.take(is_compute),
        own,
    )
    label = np.where(again[is_compute], COMPUTE_CLASSES.index(RECOMPUTE), own)
    graphs = events.covered(activity == Activity.GRAPH)
    by_class = grouped(computing, label, COMPUTE_CLASSES)
    compute = disjoint(
        [*((name, by_class[name]) for name in COMPUTE_CLASSES if name in by_class), (GRAPH_CLASS, graphs)]
    )
    every = np.full(len(events), -1, dtype=np.int8)
    every[is_compute], every[is_communication] = label, kind + len(COMPUTE_CLASSES)
    return Work(
        compute_by_class=compute,
        gemm_by_precision=_by_precision(computing, label, compute),
        communication_by_kind=grouped(collectives, kind, KINDS),
        copies=events.covered(is_copy),
        to_host=events.covered(is_copy & events.where(lambda name: "DtoH" in name)),
        from_host=events.covered(is_copy & events.where(lambda name: "HtoD" in name)),
        graphs=graphs,
        recompute=events.covered(again),
        recompute_issue=merge(issued_again.values()),
        short_kernels=computing.covered(computing.end_us - computing.start_us < SHORT_KERNEL_US),
        collectives=collectives,
        collective_kind=kind,
        collective_thread=launch.lane[is_communication],
        collective_message=timeline.device.message[is_communication],
        coverage=_coverage(timeline, is_kernel),
        kernels=kernel_times(events.take(is_kernel), every[is_kernel], timeline.repeats),
        label=every,
    )


def _classes(timeline: Timeline, computing: Spans, launched: Launched) -> Ints:
    """Returns int64[N]: the class of each computing kernel, by its name and by the ranges and operators around its
    launch."""
    own = computing.code(lambda name: COMPUTE_CLASSES.index(kernels.kernel(name).compute_class))
    return in_context(own, launch_lane=launched.lane, launch_us=launched.start_us, timeline=timeline)


def _by_precision(computing: Spans, label: Ints, compute: Mapping[str, Intervals]) -> Mapping[str, Intervals]:
    """Divides the time of the class gemm exactly by the format of the multiplied numbers."""
    products = computing.take(label == COMPUTE_CLASSES.index(GEMM))
    precision = products.code(lambda name: PRECISIONS.index(kernels.kernel(name).precision or UNKNOWN_PRECISION))
    found = grouped(products, precision, PRECISIONS)
    own = compute.get(GEMM, EMPTY)
    if len(found) == 1:
        return dict.fromkeys(found, own)
    return disjoint((name, intersect(found[name], own)) for name in PRECISIONS if name in found)


def _launched_in(by_lane: Mapping[int, Intervals], launch: Launches) -> Bools:
    """Returns bool[M]: the device events that were launched within these intervals of host time, by lane."""
    inside = np.zeros(len(launch.lane), dtype=bool)
    for lane, stretches in by_lane.items():
        here = launch.lane == lane
        inside[here] = stretches.contains(launch.start_us[here])
    return inside


def _coverage(timeline: Timeline, is_kernel: Bools) -> Coverage:
    """Returns how much of the device's time the kernel table explains; a graph without its kernels is unexplained."""
    events = timeline.device.spans
    unknown = is_kernel & ~events.where(lambda name: kernels.kernel(name).known)
    hidden = timeline.device.activity == Activity.GRAPH
    explained, unexplained = summed_us(events, (unknown | hidden).astype(np.int64), 2, timeline.repeats)
    total = explained + unexplained
    return Coverage(
        device_time_classified=float(explained / total) if total else 1.0,
        kernels=int(is_kernel.sum()),
        kernels_unknown=_largest(events.take(unknown), timeline.repeats),
        dropped=list(timeline.dropped),
    )


def _largest(events: Spans, repeats: Repeats) -> list[UnknownKernel]:
    total = summed_us(events, events.name, len(events.names), repeats)
    by_time = sorted(((float(total[i]), events.names[i]) for i in in_use(len(total), events.name)), reverse=True)
    return [UnknownKernel(name=name, total_us=us) for us, name in by_time[:UNKNOWN_KERNELS_SHOWN]]
