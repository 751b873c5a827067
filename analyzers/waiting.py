"""Who waited for whom: in a collective the last rank to arrive transfers, the others wait for it.

Ranks' collectives are matched by order: the k-th of a kind in a step is the same one on every rank, if all have as
many and they overlap in time. A collective's transfer then is its shortest time on any rank, the rest is waiting.
Pipeline sends and receives pair ranks differently and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzers.digest import Digest
from analyzers.intervals import EMPTY, Floats, Intervals, merge, union
from analyzers.kernels import KINDS
from analyzers.timeline import Ints

PIPELINE = KINDS.index("pp")


def waiting(ranks: Sequence[Digest], shared: Sequence[Sequence[int]]) -> list[Intervals]:
    """For each rank, the time its collectives waited for another rank; empty where nothing can be matched.

    shared: for each rank the numbers of the steps that all ranks have, in one order.
    """
    if len(ranks) < 2 or not all(rank.windows for rank in ranks):
        return [EMPTY for _ in ranks]
    found: list[list[Intervals]] = [[] for _ in ranks]
    kinds = set(np.concatenate([rank.collectives.kind for rank in ranks]).tolist()) - {PIPELINE}
    for steps in zip(*shared, strict=True):
        for kind in sorted(kinds):
            for mine, waits in zip(found, _waits_in_step(ranks, steps, kind), strict=True):
                mine.append(waits)
    return [merge(waits) for waits in found]


def _waits_in_step(ranks: Sequence[Digest], steps: Sequence[int], kind: int) -> list[Intervals]:
    events = [_events(rank, step, kind) for rank, step in zip(ranks, steps, strict=True)]
    counts = {len(start) for start, _ in events}
    if len(counts) != 1 or counts == {0}:
        return [EMPTY for _ in ranks]
    start = np.stack([start for start, _ in events])  # float64[R, N], each on its own clock
    end = np.stack([end for _, end in events])
    origin = np.array([[rank.origin_us] for rank in ranks])
    transfer = _transfer(start + origin, end + origin)
    return [union(start[r], end[r] - transfer[r]) for r in range(len(ranks))]


def _events(rank: Digest, step: int, kind: int) -> tuple[Floats, Floats]:
    """Start and end of the rank's collectives of a kind that began in the step, in order."""
    found = rank.collectives
    begin, end = rank.span_of(step)
    chosen = np.flatnonzero((found.kind == kind) & (found.start_us >= begin) & (found.start_us < end))
    order: Ints = chosen[np.lexsort((found.end_us[chosen], found.start_us[chosen]))]
    return found.start_us[order], found.end_us[order]


def _transfer(start: Floats, end: Floats) -> Floats:
    """float64[R, N]: the shortest time of the ranks that were in the collective at the same moment."""
    took = end - start
    shortest = took.copy()
    for mine in range(len(start)):
        for other in range(len(start)):
            together = (start[other] < end[mine]) & (start[mine] < end[other])
            shortest[mine] = np.where(together, np.minimum(shortest[mine], took[other]), shortest[mine])
    return shortest
