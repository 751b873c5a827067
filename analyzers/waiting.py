"""Who waited for whom: in a collective the last rank to arrive transfers, the others wait for it.

Ranks' collectives are matched by order: the k-th of a kind in a step is the same one on every rank, if all have as
many and they overlap in time. A collective's transfer then is its shortest time on any rank, the rest is waiting.
Pipeline sends and receives pair ranks differently and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.intervals import EMPTY, Floats, Intervals, merge, union
from analyzers.kernels import KINDS
from analyzers.steps import Step
from analyzers.timeline import Ints
from analyzers.work import Work

PIPELINE = KINDS.index("pp")


@dataclass(frozen=True, kw_only=True)
class Rank:
    """What matching needs of a rank: its work, the start of its clock, its steps in order."""

    work: Work
    origin_us: float
    steps: Sequence[Step]


def waiting(ranks: Sequence[Rank]) -> list[Intervals]:
    """For each rank, the time its collectives waited for another rank; empty where nothing can be matched."""
    count = min((len(rank.steps) for rank in ranks), default=0)
    if len(ranks) < 2 or any(len(rank.steps) != count for rank in ranks):
        return [EMPTY for _ in ranks]
    found: list[list[Intervals]] = [[] for _ in ranks]
    kinds = set(np.concatenate([rank.work.collective_kind for rank in ranks]).tolist()) - {PIPELINE}
    for k in range(count):
        for kind in sorted(kinds):
            for mine, waits in zip(found, _waits_in_step(ranks, k, kind), strict=True):
                mine.append(waits)
    return [merge(waits) for waits in found]


def _waits_in_step(ranks: Sequence[Rank], k: int, kind: int) -> list[Intervals]:
    events = [_events(rank, rank.steps[k], kind) for rank in ranks]
    counts = {len(start) for start, _ in events}
    if len(counts) != 1 or counts == {0}:
        return [EMPTY for _ in ranks]
    start = np.stack([start for start, _ in events])  # float64[R, N], each on its own clock
    end = np.stack([end for _, end in events])
    origin = np.array([[rank.origin_us] for rank in ranks])
    transfer = _transfer(start + origin, end + origin)
    return [union(start[r], end[r] - transfer[r]) for r in range(len(ranks))]


def _events(rank: Rank, step: Step, kind: int) -> tuple[Floats, Floats]:
    """Start and end of the rank's collectives of a kind that began in the step, in order."""
    spans = rank.work.collectives
    began = (spans.start_us >= step.start_us) & (spans.start_us < step.end_us)
    chosen = np.flatnonzero((rank.work.collective_kind == kind) & began)
    order: Ints = chosen[np.lexsort((spans.end_us[chosen], spans.start_us[chosen]))]
    return spans.start_us[order], spans.end_us[order]


def _transfer(start: Floats, end: Floats) -> Floats:
    """float64[R, N]: the shortest time of the ranks that were in the collective at the same moment."""
    took = end - start
    shortest = took.copy()
    for mine in range(len(start)):
        for other in range(len(start)):
            together = (start[other] < end[mine]) & (start[mine] < end[other])
            shortest[mine] = np.where(together, np.minimum(shortest[mine], took[other]), shortest[mine])
    return shortest
