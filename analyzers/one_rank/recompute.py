"""Finds the host time in which forward work was launched again during backward (recompute).

Four things show it, where they are recorded: a `recompute` range; a checkpoint's backward node, up to the nested
backward pass; forward operators that autograd recorded while it evaluated a backward node (plain backward records none;
this also finds recompute in saved-tensor hooks, where no node is named checkpoint); ranges of a forward inside ranges
of a backward.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from analyzers.intervals import EMPTY, Bools, Intervals, merge, union
from analyzers.timeline import NO_CORRELATION, Ints, Spans, Timeline

RECOMPUTE_RANGE = re.compile(r"^recompute($|[ _:(])")
# nodes of torch.utils.checkpoint (reentrant), megatron.core.tensor_parallel.random and DeepSpeed; Transformer Engine's
# starts with _
CHECKPOINT_BACKWARD = re.compile(r"^_?Checkpoint\w*FunctionBackward$")
NODE = "autograd::engine::evaluate_function"
# backward nodes have the sequence number of their forward operator
BACKWARD_NODE = re.compile(r"^(torch::)?autograd::|Backward\d*(,|$)")
# torch.autograd.profiler.emit_nvtx writes operators as ranges
NVTX_SEQUENCE = re.compile(r", seq = (\d+)")
NVTX_OPERATOR = re.compile(r", (seq|op_id) = \d+|^\w+::\w+$")
ROUNDING_US = 1e-3  # sums of times differ in their last digits
FORWARD_RANGE = re.compile(r"^(forward|fwd)($|[ _:(])|[ .](forward|fwd)$", re.IGNORECASE)
BACKWARD_RANGE = re.compile(
    r"^(?!.*(forward|fwd))((backward|bwd)($|[ _:(])|.*[ .](backward|bwd)(\(\))?$)", re.IGNORECASE
)


def recompute_by_lane(timeline: Timeline) -> dict[int, Intervals]:
    """Returns, for each host thread, the time in which it ran forward work again."""
    ranges, ops = timeline.ranges, timeline.ops
    annotated = ranges.take(ranges.where(lambda name: RECOMPUTE_RANGE.match(name) is not None))
    inside = ranges.take(_forward_in_backward(ranges))
    parts = [
        _by_lane(annotated),
        _by_lane(inside),
        _before_nested(ops),
        _recorded_in_backward(ops),
        _recorded_in_backward(_operators_written_as_ranges(ranges)),
    ]
    return {
        lane: merge(part.get(lane, EMPTY) for part in parts) for lane in sorted({k for part in parts for k in part})
    }


def _by_lane(spans: Spans) -> dict[int, Intervals]:
    return {lane: spans.covered(spans.lane == lane) for lane in np.unique(spans.lane).tolist()}


def _before_nested(ops: Spans) -> dict[int, Intervals]:
    """Returns, by thread, the time from the start of each checkpoint's backward to the first backward node within it,
    or to its end."""
    checkpoints = ops.take(ops.where(lambda name: CHECKPOINT_BACKWARD.match(name) is not None))
    if not len(checkpoints):
        return {}
    nodes = ops.take(ops.where(lambda name: name.startswith(NODE)))
    found = {}
    for lane in np.unique(checkpoints.lane).tolist():
        mine = checkpoints.take(checkpoints.lane == lane)
        starts = np.append(np.sort(nodes.start_us[nodes.lane == lane]), np.inf)
        first = starts[np.searchsorted(starts, mine.start_us)]
        found[lane] = union(mine.start_us, np.minimum(first, mine.end_us))
    return found


def _recorded_in_backward(ops: Spans) -> dict[int, Intervals]:
    """Returns, by thread, the time of operators that autograd recorded while the thread evaluated a backward node."""
    is_node = ops.where(lambda name: name.startswith(NODE))
    is_operator = ~ops.where(lambda name: BACKWARD_NODE.search(name) is not None)
    recorded = is_operator & (ops.correlation != NO_CORRELATION)
    recorded &= np.isin(ops.lane, np.unique(ops.lane[is_node]))
    found = {}
    for lane in np.unique(ops.lane[recorded]).tolist():
        here = ops.lane == lane
        nodes = ops.take(is_node & here)
        again = _with_plain_gradients(
            ops.take(recorded & here), ops.take(is_operator & ~recorded & here), nodes.covered()
        )
        if len(again):
            found[lane] = _joined_within(again, nodes)
    return found


def _with_plain_gradients(recorded: Spans, unrecorded: Spans, nodes: Intervals) -> Intervals:
    """Returns the time of operators recorded in nodes that also compute gradients without recording them.

    With double backward autograd records backward as well, and nothing distinguishes recompute from it.
    """
    recorded = recorded.take(nodes.contains(recorded.start_us))
    again = recorded.covered()
    gradients = unrecorded.start_us[nodes.contains(unrecorded.start_us) & ~again.contains(unrecorded.start_us)]
    plain = np.unique(np.searchsorted(nodes.start, gradients, side="right"))
    return recorded.covered(np.isin(np.searchsorted(nodes.start, recorded.start_us, side="right"), plain))


def _joined_within(parts: Intervals, nodes: Spans) -> Intervals:
    """Joins parts across gaps in which no node starts or ends, since Python prepares the next operator there."""
    edges = np.sort(np.concatenate((nodes.start_us, nodes.end_us)))
    gap_start, gap_end = parts.end[:-1], parts.start[1:]
    same = np.searchsorted(edges, gap_start, side="right") == np.searchsorted(edges, gap_end, side="right")
    return merge((parts, union(gap_start[same], gap_end[same])))


def _forward_in_backward(ranges: Spans) -> Bools:
    """Returns bool[N]: forward ranges inside backward ranges, of whichever thread."""
    forward = ranges.where(lambda name: FORWARD_RANGE.search(name) is not None)
    if not forward.any():
        return forward
    backward = ranges.covered(ranges.where(lambda name: BACKWARD_RANGE.search(name) is not None))
    covered = backward.within(ranges.start_us, ranges.end_us)
    whole = covered >= ranges.end_us - ranges.start_us - ROUNDING_US
    return forward & backward.contains(ranges.start_us) & whole


def _operators_written_as_ranges(ranges: Spans) -> Spans:
    """Returns the ranges that are operators, with their sequence numbers as correlation."""
    written = ranges.where(lambda name: name.startswith(NODE) or NVTX_OPERATOR.search(name) is not None)
    operators = ranges.take(written)
    sequence: Ints = operators.code(_sequence)
    return replace(operators, correlation=sequence)


def _sequence(name: str) -> int:
    found = NVTX_SEQUENCE.search(name)
    return int(found[1]) if found else NO_CORRELATION
