"""The job as the walls see it: an average step as its slowest rank lived it, and what the run folder adds.

In each step the slowest rank is the one with most time of its own, that is without waiting for others; averages
are over steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzers.digest import Digest
from analyzers.outcome import RunOutcome
from analyzers.rank_step import RankStep, average
from analyzers.waiting import waiting
from analyzers.wording import ms, percent


@dataclass(frozen=True, kw_only=True)
class Job:
    """step is None if the run left no traces. slowest: the rank that was slowest most often, None if not known."""

    step: RankStep | None = None
    steps: int = 0  # averaged over; 0 if none were marked and the whole trace was taken as one
    slowest: int | None = None
    imbalance_us: float = 0.0  # what an even load of the ranks would give back: the step less the mean rank's own time
    by_rank: Mapping[int, RankStep] = field(default_factory=dict)  # the average step of each rank
    classified: float = 1.0  # share of device time explained, the worst rank's
    cut_short: tuple[str, ...] = ()  # the traces whose end is missing
    on_cpu: bool = False
    outcome: RunOutcome = field(default_factory=RunOutcome)

    def share(self, us: float) -> float:
        """Part of the average step, 0..1."""
        return us / self.step.duration_us if self.step and self.step.duration_us > 0 else 0.0

    def of_step(self, us: float) -> str:
        """`21 of 140 ms a step (15 %)`."""
        whole = self.step.duration_us if self.step else 0.0
        return f"{ms(us)} of {ms(whole)} ms{' a step' if self.steps else ''} ({percent(self.share(us))})"


def summarise(digests: Sequence[Digest], outcome: RunOutcome | None) -> Job:
    """The average step of the slowest rank; digests of the ranks of one job, in any order."""
    outcome = outcome or RunOutcome()
    if not digests:
        return Job(outcome=outcome)
    shared = _shared_steps(digests)
    waits = waiting(digests, shared)
    table = [
        [steps[k] for k in chosen]
        for steps, chosen in zip((d.steps_waiting(w) for d, w in zip(digests, waits, strict=True)), shared, strict=True)
    ]
    slowest = [int(np.argmax([row[k].own_us for row in table])) for k in range(len(shared[0]))]
    ranks = [d.rank for d in digests]
    return Job(
        step=average([table[r][k] for k, r in enumerate(slowest)]),
        steps=len(slowest) if digests[0].windows else 0,
        slowest=ranks[Counter(slowest).most_common(1)[0][0]],
        imbalance_us=_imbalance_us(table),
        by_rank={rank: average(row) for rank, row in zip(ranks, table, strict=True) if rank is not None},
        classified=min(d.report.coverage.device_time_classified for d in digests),
        cut_short=tuple(d.report.path for d in digests if d.cut_short),
        on_cpu=all(d.on_cpu for d in digests),
        outcome=outcome,
    )


def _imbalance_us(table: Sequence[Sequence[RankStep]]) -> float:
    """Ranks that wait by turns, each for another in another layer, lose as much as if one made all the others wait.

    table: for each rank its steps, as many of each.
    """
    steps = list(zip(*table, strict=True))
    lost = [
        max(one.duration_us - one.bubble_us for one in step) - np.mean([one.own_us for one in step]) for step in steps
    ]
    return max(0.0, float(np.mean(lost)))


def _shared_steps(digests: Sequence[Digest]) -> list[list[int]]:
    """For each rank the numbers of the steps that all have: by name, or by order if no name is shared."""
    names = [[window.name for window in d.windows] for d in digests]
    shared = [name for name in names[0] if all(name in others for others in names)]
    if shared:
        return [[own.index(name) for name in shared] for own in names]
    fewest = min(len(own) for own in names)
    return [list(range(max(fewest, 1))) for _ in names]
