"""Forward work done again during backward: the host time in which it was issued.

A `recompute` range says so itself. Without one, torch's and Megatron's checkpoint functions show it: inside their
backward node everything up to the nested backward pass is the forward, run again.
"""

from __future__ import annotations

import numpy as np

from analyzers.intervals import Intervals, merge, union
from analyzers.timeline import Spans, Timeline

RANGE_NAME = "recompute"
# torch.utils.checkpoint (reentrant) and megatron.core.tensor_parallel.random; selective recompute through
# CheckpointWithoutOutput runs in a hook and needs the range
CHECKPOINT_BACKWARD = "CheckpointFunctionBackward"
NESTED_BACKWARD = "autograd::engine::evaluate_function"


def recompute_by_lane(timeline: Timeline) -> dict[int, Intervals]:
    """For each host thread the time in which it ran forward work again."""
    ranges, ops = timeline.ranges, timeline.ops
    annotated = ranges.take(ranges.where(lambda name: name == RANGE_NAME))
    checkpoints = ops.take(ops.where(lambda name: name == CHECKPOINT_BACKWARD))
    backward = ops.take(ops.where(lambda name: name.startswith(NESTED_BACKWARD)))
    found = {}
    for lane in np.union1d(annotated.lane, checkpoints.lane).tolist():
        again = _before_nested(checkpoints.take(checkpoints.lane == lane), backward.take(backward.lane == lane))
        found[lane] = merge((annotated.covered(annotated.lane == lane), again))
    return found


def _before_nested(checkpoints: Spans, backward: Spans) -> Intervals:
    """From the start of each checkpoint's backward to the first backward node within it."""
    nodes = np.append(np.sort(backward.start_us), np.inf)
    first = nodes[np.searchsorted(nodes, checkpoints.start_us)]
    return union(checkpoints.start_us, np.minimum(first, checkpoints.end_us))
