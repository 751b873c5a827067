"""The work of a GPU from its device events: compute by class, communication by kind, copies, graphs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analyzers import communication, kernels
from analyzers.diagnosis import Coverage, UnknownKernel
from analyzers.intervals import Bools, Intervals
from analyzers.kernels import COMMUNICATION, COMPUTE_CLASSES, KINDS, RECOMPUTE
from analyzers.launches import Launches
from analyzers.recompute import recompute_by_lane
from analyzers.timeline import Activity, Spans, Timeline
from analyzers.work import Work, disjoint, grouped

# a kernel this short is over before the next can be launched (a launch costs "several microseconds",
# arXiv 2603.07685 §4.3.6): the device's time goes into starting work, not into doing it
SHORT_KERNEL_US = 8.0
UNKNOWN_KERNELS_SHOWN = 10
GRAPH_CLASS = "graph"


def work(timeline: Timeline, launch: Launches) -> Work:
    """Sort every device event into the sets the breakdown measures."""
    events, activity = timeline.device.spans, timeline.device.activity
    is_kernel = activity == Activity.KERNEL
    is_communication = is_kernel & events.where(lambda name: kernels.kernel(name).compute_class == COMMUNICATION)
    again = _launched_in(recompute_by_lane(timeline), launch)
    collectives = events.take(is_communication)
    kind = communication.kinds(
        collectives,
        timeline.device.group[is_communication],
        launch_lane=launch.lane[is_communication],
        launch_us=launch.start_us[is_communication],
        timeline=timeline,
    )
    is_copy = activity == Activity.COPY
    is_compute = is_kernel & ~is_communication
    computing = events.take(is_compute)
    return Work(
        compute_by_class=_compute(computing, again[is_compute], events.covered(activity == Activity.GRAPH)),
        communication_by_kind=grouped(collectives, kind, KINDS),
        copies=events.covered(is_copy),
        to_host=events.covered(is_copy & events.where(lambda name: "DtoH" in name)),
        from_host=events.covered(is_copy & events.where(lambda name: "HtoD" in name)),
        graphs=events.covered(activity == Activity.GRAPH),
        recompute=events.covered(again),
        short_kernels=computing.covered(computing.end_us - computing.start_us < SHORT_KERNEL_US),
        collectives=collectives,
        collective_kind=kind,
        coverage=_coverage(timeline, is_kernel),
    )


def _compute(computing: Spans, again: Bools, graphs: Intervals) -> Mapping[str, Intervals]:
    index = {name: i for i, name in enumerate(COMPUTE_CLASSES)}
    label = computing.code(lambda name: index[kernels.kernel(name).compute_class])
    by_class = grouped(computing, np.where(again, index[RECOMPUTE], label), COMPUTE_CLASSES)
    ranked = [(name, by_class[name]) for name in COMPUTE_CLASSES if name in by_class]
    return disjoint([*ranked, (GRAPH_CLASS, graphs)])


def _launched_in(by_lane: Mapping[int, Intervals], launch: Launches) -> Bools:
    """bool[M]: the device events launched from one of these stretches of host time."""
    inside = np.zeros(len(launch.lane), dtype=bool)
    for lane, stretches in by_lane.items():
        here = launch.lane == lane
        inside[here] = stretches.contains(launch.start_us[here])
    return inside


def _coverage(timeline: Timeline, is_kernel: Bools) -> Coverage:
    """How much of the device's time a row of the kernel table explains; graphs hide theirs."""
    events = timeline.device.spans
    took = events.end_us - events.start_us
    unknown = is_kernel & ~events.where(lambda name: kernels.kernel(name).known)
    hidden = timeline.device.activity == Activity.GRAPH
    total = float(took.sum())
    explained = 1.0 - float(took[unknown | hidden].sum()) / total if total else 1.0
    return Coverage(
        device_time_classified=explained,
        kernels=int(is_kernel.sum()),
        kernels_unknown=_largest(events.take(unknown)),
        dropped=list(timeline.dropped),
    )


def _largest(events: Spans) -> list[UnknownKernel]:
    used, position = np.unique(events.name, return_inverse=True)
    total = np.bincount(position, weights=events.end_us - events.start_us, minlength=len(used))
    by_time = sorted(zip(total.tolist(), (events.names[i] for i in used), strict=True), reverse=True)
    return [UnknownKernel(name=name, total_us=us) for us, name in by_time[:UNKNOWN_KERNELS_SHOWN]]
