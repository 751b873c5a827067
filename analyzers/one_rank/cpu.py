"""Sorts the work of a rank that computes on CPUs into the same form as that of a GPU (`gpu.work`).

The operators on the main thread and on autograd's threads are compute. Collectives run on gloo's threads (`gloo:`
ranges); their time outside operators is exposed. A pending `gloo:recv` is waiting for a pipeline peer. All other time
outside operators (Python) is host time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import eq

import numpy as np

from analyzers.diagnosis import Coverage
from analyzers.intervals import EMPTY, Floats, Intervals, intersect, merge, subtract, window
from analyzers.kernel_classes import COMPUTE_CLASSES, KINDS, RECOMPUTE
from analyzers.names import kernels
from analyzers.nesting import NONE, innermost, outermost
from analyzers.one_rank import communication
from analyzers.one_rank.communication import Collectives
from analyzers.one_rank.expert_exchange import Launched
from analyzers.one_rank.gaps import Idle, is_receive, waits_for_receives
from analyzers.one_rank.host import LAUNCH_OPERATOR
from analyzers.one_rank.recompute import recompute_by_lane
from analyzers.one_rank.work import Work, disjoint, grouped
from analyzers.timeline import Ints, Spans, Timeline

GLOO = "gloo:"
GLOO_SEND = "gloo:send"
AUTOGRAD = "autograd::engine::"
# range -> class of the operators inside it; a GEMM in `experts` is the grouped GEMM's work
CLASS_OF_RANGE = {
    "attention": "attention",
    "router": "router",
    "dispatch": "router",
    "combine": "router",
    "experts": "grouped_gemm",
    "optimizer": "optimizer",
}
# the collective of a gloo range -> the c10d operators that launch it
LAUNCHED_BY: dict[str, tuple[str, ...]] = {
    "all_to_all": ("alltoall",),
    "all_gather": ("allgather", "_allgather"),
    "all_reduce": ("allreduce",),
    "reduce_scatter": ("reduce_scatter", "_reduce_scatter"),
    "broadcast": ("broadcast",),
    "reduce": ("reduce_",),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "barrier": ("barrier",),
    "send": ("send",),
    "recv": ("recv",),
}
# gloo has no reduce-scatter of its own: torch all-reduces and keeps a part (ProcessGroupGloo.cpp)
INSTEAD = {"reduce_scatter": "all_reduce"}


def work(timeline: Timeline) -> Work:
    """Returns the host threads' events as the sets of time that a breakdown measures."""
    ranges, ops = timeline.ranges, timeline.ops
    is_gloo = ranges.where(lambda name: name.startswith(GLOO))
    receives = ranges.where(is_receive)
    collectives = ranges.take(is_gloo & ~receives)
    kind = _kinds(timeline, collectives)
    # a send is pending until its batch has been waited for; while a receive of the batch is pending too, the wait is
    # for the receive
    receiving = ranges.covered(receives)
    is_send = collectives.where(lambda name: name.startswith(GLOO_SEND))
    sends, others = (grouped(collectives.take(s), kind[s], KINDS) for s in (is_send, ~is_send))
    sending = {name: subtract(ran, receiving) for name, ran in sends.items()}
    by_kind = {name: merge((sending.get(name, EMPTY), others.get(name, EMPTY))) for name in {**sending, **others}}
    computing = _computing(ops, computing_lanes(timeline))
    again = recompute_by_lane(timeline)
    label = _classes(computing, ranges)
    for lane, stretches in again.items():
        recomputed = (computing.lane == lane) & stretches.contains(computing.start_us)
        label[recomputed] = COMPUTE_CLASSES.index(RECOMPUTE)
    by_class = grouped(computing, label, COMPUTE_CLASSES)
    by_class[RECOMPUTE] = merge((by_class.get(RECOMPUTE, EMPTY), _within_nodes(computing, again)))
    return Work(
        compute_by_class=disjoint((name, by_class[name]) for name in COMPUTE_CLASSES if name in by_class),
        communication_by_kind=by_kind,
        copies=EMPTY,
        recompute=merge(again.values()),
        recompute_issue=merge(again.values()),
        collectives=collectives,
        collective_kind=kind,
        collective_thread=(unknown := np.full(len(collectives), -1, dtype=np.int64)),
        collective_message=unknown,
        coverage=Coverage(device_time_classified=1.0, kernels=len(computing), dropped=list(timeline.dropped)),
    )


def _within_nodes(computing: Spans, again: Mapping[int, Intervals]) -> Intervals:
    """Returns the part of recompute (`again`, by thread) in which an operator runs on the same thread."""
    return merge(intersect(computing.covered(computing.lane == lane), when) for lane, when in again.items())


def idle(timeline: Timeline, work: Work, *, start_us: float, end_us: float) -> Idle:
    """Returns the time without compute or communication: waiting for a pipeline peer, else the host's."""
    gaps = subtract(window(start_us, end_us), work.busy)
    bubble = waits_for_receives(timeline.ranges, gaps)
    return Idle(host=subtract(gaps, bubble), bubble=bubble)


def computing_lanes(timeline: Timeline) -> Ints:
    """Returns the threads that compute: the main thread (most operator time) and every thread that runs backward
    nodes."""
    ops = timeline.ops
    if not len(ops):
        return np.empty(0, dtype=np.int64)
    lanes, position = np.unique(ops.lane, return_inverse=True)
    main = lanes[np.argmax(np.bincount(position, weights=ops.end_us - ops.start_us))]
    backward = ops.lane[ops.where(lambda name: name.startswith(AUTOGRAD))]
    return np.union1d(backward, [main])


def _computing(ops: Spans, lanes: Ints) -> Spans:
    """Returns the outermost operators that compute; Python functions and autograd's engine only enclose them."""
    computes = ops.where(lambda name: kernels.operator(name).known)
    return outermost(ops.take(computes & np.isin(ops.lane, lanes)))


def _classes(computing: Spans, ranges: Spans) -> Ints:
    index = {name: i for i, name in enumerate(COMPUTE_CLASSES)}
    own = computing.code(lambda name: index[kernels.operator(name).compute_class])
    of_range = ranges.code(lambda name: index[CLASS_OF_RANGE[name]] if name in CLASS_OF_RANGE else NONE)
    around = innermost(ranges, of_range, computing.lane, computing.start_us)
    # inside `experts` only GEMMs become grouped GEMMs; other operators keep their class
    keeps_own = (around == NONE) | ((around == index["grouped_gemm"]) & (own != index["gemm"]))
    return np.where(keeps_own, own, around)


def _kinds(timeline: Timeline, collectives: Spans) -> Ints:
    lane, start = _launches(timeline.ops, collectives)
    unknown = np.full(len(collectives), -1, dtype=np.int64)
    nothing = np.empty(0, dtype=np.int64)
    return communication.kinds(
        Collectives(events=collectives, group=unknown, message=unknown, launched=Launched(lane=lane, start_us=start)),
        timeline,
        Launched(lane=nothing, start_us=np.empty(0)),
        nothing,
    )


def _launches(ops: Spans, collectives: Spans) -> tuple[Ints, Floats]:
    """Returns the thread and the moment from which each collective was launched, since gloo's threads keep no link to
    their callers. The k-th collective belongs to the k-th launching range if there are equally many, else to the latest
    launch before it started."""
    lane = np.full(len(collectives), -1, dtype=np.int64)
    moment = np.full(len(collectives), np.inf)
    launched_by = dict(LAUNCHED_BY)
    for requested, done in INSTEAD.items():
        if not collectives.where(partial(eq, GLOO + requested)).any():
            launched_by[done] = (*launched_by[done], *launched_by.pop(requested))
    for collective, prefixes in launched_by.items():
        ranges = np.flatnonzero(collectives.where(partial(eq, GLOO + collective)))
        calls = np.flatnonzero(ops.where(partial(_launches_one_of, prefixes)))
        if len(ranges) and len(calls):
            ranges = ranges[np.argsort(collectives.start_us[ranges], kind="stable")]
            calls = calls[np.argsort(ops.start_us[calls], kind="stable")]
            call = calls[_partner(ops.start_us[calls], collectives.start_us[ranges])]
            lane[ranges], moment[ranges] = ops.lane[call], ops.start_us[call]
    return lane, moment


def _launches_one_of(prefixes: tuple[str, ...], name: str) -> bool:
    return name.startswith(LAUNCH_OPERATOR) and name.removeprefix(LAUNCH_OPERATOR).startswith(prefixes)


def _partner(launched: Floats, started: Floats) -> Ints:
    if len(launched) == len(started) and bool(np.all(launched <= started)):
        return np.arange(len(started))
    return np.maximum(np.searchsorted(launched, started, side="right") - 1, 0)
