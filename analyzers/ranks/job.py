"""The job as the walls use it: an average step, measured on its slowest rank, and the outcome in the run folder.

In each step the slowest rank is the one with most time that is certainly its own: without known or possible waiting for
others. Averages are over steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from analyzers.diagnosis import MemoryUse, RankTime, TraceReport
from analyzers.kernel_classes import PIPELINE
from analyzers.one_rank.digest import Digest
from analyzers.one_rank.rank_step import RankStep, average
from analyzers.outcome import RunOutcome
from analyzers.ranks.causes import Causes, causes, scaled_down
from analyzers.ranks.clocks import align
from analyzers.ranks.late_ranks import Lateness, lateness
from analyzers.ranks.matching import match, pairs
from analyzers.ranks.stragglers import ExpertLoad, Place, Straggler, expert_load, imbalance_us, places, rank_times
from analyzers.ranks.waiting import waiting
from analyzers.steps import warm_up
from analyzers.wording import ms, percent

MIN_SHOWN_SHARE = 0.005  # share of the step: a shorter time gets no line


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job's average step, and figures of its ranks.

    step is None without traces.
    """

    step: RankStep | None = None
    steps: int = 0  # number of steps averaged over; 0 if none was marked and the whole trace was taken as one
    each: Sequence[Sequence[RankStep]] = ()  # every step of every rank
    shared: Sequence[Sequence[int]] = ()  # for each rank, the numbers of the steps averaged over, in the same order
    counted: Sequence[tuple[int, int]] = ()  # the steps averaged: the slowest rank's place and its step's number
    warm_up_us: tuple[float, ...] = ()  # duration of each step at the start that was left out
    warm_up: Sequence[Sequence[int]] = ()  # the numbers of these steps on each rank
    slowest_place: Place = field(default_factory=Place)  # the rank that was slowest most often
    imbalance_us: float = 0.0  # time that evenly loaded ranks would save (`stragglers.imbalance_us`)
    by_rank: Mapping[int, RankStep] = field(default_factory=dict)  # the average step of each rank
    ranks: Sequence[RankTime] = ()  # each rank compared with the others, if several were traced
    late: Straggler | None = None  # the rank that comes latest to collectives
    lateness: Lateness = field(default_factory=Lateness)  # causes of waiting for other ranks, and the ranks waited for
    expert_load: ExpertLoad = field(default_factory=ExpertLoad)
    memory: Sequence[tuple[int | None, MemoryUse]] = ()  # memory of each rank that recorded it
    world_size: int | None = None  # ranks of the job, traced or not
    # by kind of communication: ranks of its process groups without a trace
    untraced: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # ranks that share no collective with the first, directly or through others: their waiting is not known
    unaligned: tuple[str, ...] = ()
    classified: float = 1.0  # share of device time explained, the worst rank's
    cut_short: tuple[str, ...] = ()  # the traces whose end is missing: `cut short at 48.4 MB: PATH`
    on_cpu: bool = False
    outcome: RunOutcome = field(default_factory=RunOutcome)

    @property
    def even_experts_us(self) -> float:
        """Returns how many µs per step evenly loaded experts would save, at most what evenly loaded ranks would."""
        return min(self.expert_load.beyond_mean_us, self.imbalance_us)

    def share(self, us: float) -> float:
        """Returns a time as a share of the average step, 0..1."""
        return us / self.step.duration_us if self.step and self.step.duration_us > 0 else 0.0

    def gained_us(self, recoverable: Callable[[RankStep], float]) -> float:
        """Returns how much shorter the step gets if each rank saves its `recoverable` µs, limited by the rank that is
        the slowest then; 0 without a step. Possible waiting of the other ranks counts as waiting."""
        if self.step is None:
            return 0.0
        own_us = self.step.own_us
        others = ((recoverable(one), one.certainly_own_us) for one in self.by_rank.values())
        return max(0.0, min([recoverable(self.step), *(us + max(0.0, own_us - own) for us, own in others)]))

    def least_us(self, recoverable: Callable[[RankStep], float]) -> float | None:
        """Returns `gained_us` under the assumption that an untraced pipeline stage is as slow as the slowest rank, and
        spends its time like a traced rank that waits for it. None if no such stage is possible."""
        if self.step is None or self.world_size is None or self.world_size <= len(self.by_rank):
            return None
        if self.late is not None and self.late.place == self.slowest_place and self.late.kind != PIPELINE:
            return None  # the others of its own stage wait for it
        own_us = self.step.own_us
        waiting = [one for one in self.by_rank.values() if one.pipeline_wait_us >= own_us - one.own_us > 0]
        if not waiting:
            return None
        return min([self.gained_us(recoverable), *(recoverable(one) * own_us / one.own_us for one in waiting)])

    def until_another_is_slowest(self, alone_us: float, gained_us: float) -> list[str]:
        """Returns a line that explains why the job gains less than the slowest rank alone would; [] if the difference
        is small."""
        if self.share(alone_us - gained_us) < MIN_SHOWN_SHARE:
            return []
        return [
            f"{self.slowest_place} alone would be {ms(alone_us)} ms faster, the step only {ms(gained_us)} ms "
            f"({percent(self.share(gained_us))}): then another rank is the slowest"
        ]

    def only(self, place: int, k: int) -> Job:
        """Returns the job reduced to step k of one rank.

        From the other ranks it keeps how long they waited, the cost of their uneven load, and their same step if this
        rank is the slowest in it.
        """
        step = self.each[place][k]
        same_steps = self._same_step_of_all(place, k)
        slowest = all(one.certainly_own_us <= step.certainly_own_us for one in same_steps)
        return Job(
            step=step,
            steps=1,
            by_rank=dict(enumerate(same_steps)) if slowest else {},
            world_size=self.world_size,
            lateness=self.lateness.over(same_steps or [step]),
            imbalance_us=step.imbalance_us,
            classified=self.classified,
            cut_short=self.cut_short,
            on_cpu=self.on_cpu,
            outcome=self._outcome_of(step),
        )

    def _same_step_of_all(self, place: int, k: int) -> list[RankStep]:
        """Returns the step of every rank that is the same as step k of rank `place`; [] if not all ranks have it."""
        if not self.shared or k not in self.shared[place]:
            return []
        at = self.shared[place].index(k)
        return [steps[numbers[at]] for steps, numbers in zip(self.each, self.shared, strict=True)]

    def _outcome_of(self, step: RankStep) -> RunOutcome:
        """Returns the outcome with the FLOP/s of this step: every step does the same arithmetic, so a longer one has a
        lower rate."""
        outcome = msgspec.structs.replace(self.outcome, failure=None)
        if not outcome.model_tflops_per_gpu or self.step is None or step.duration_us <= 0:
            return outcome
        rate = outcome.model_tflops_per_gpu * self.step.duration_us / step.duration_us
        return msgspec.structs.replace(outcome, model_tflops_per_gpu=rate)

    def of_step(self, us: float) -> str:
        """Returns `21 of 140 ms per step (15 %)`."""
        whole = self.step.duration_us if self.step else 0.0
        return f"{ms(us)} of {ms(whole)} ms{' per step' if self.steps else ''} ({percent(self.share(us))})"


def summarise(digests: Sequence[Digest], outcome: RunOutcome | None) -> Job:
    """Returns the job with the average step of its slowest rank. digests: of the ranks of one job, in any order."""
    outcome = outcome or RunOutcome()
    if not digests:
        return Job(outcome=outcome)
    every = _shared_steps(digests)
    warm = _warm_up(digests, every)
    shared = [steps[len(warm) :] for steps in every]
    matches = match(digests, shared)
    clocks = align(len(digests), pairs(digests, matches), _one_clock(digests))
    waits = waiting(digests, shared, matches, clocks)
    each = [d.steps_waiting(w.waiting, w.maybe) for d, w in zip(digests, waits, strict=True)]
    why = causes(digests, shared, matches, clocks)
    _set_waiting_by_cause(each, shared, why)
    _set_imbalance(each, shared)
    table = [[steps[k] for k in chosen] for steps, chosen in zip(each, shared, strict=True)]
    slowest = [int(np.argmax([row[k].certainly_own_us for row in table])) for k in range(len(shared[0]))]
    often = Counter(slowest).most_common(1)[0][0]
    numbers, named = [d.rank for d in digests], places(digests)
    ranks, late = rank_times(digests, clocks, waits, table)
    step = average([table[r][k] for k, r in enumerate(slowest)])
    return Job(
        step=step,
        steps=len(slowest) if digests[0].windows else 0,
        each=each,
        shared=shared,
        counted=[(r, shared[r][k]) for k, r in enumerate(slowest)],
        warm_up_us=tuple(warm),
        warm_up=[steps[: len(warm)] for steps in every],
        slowest_place=named[often],
        by_rank={rank: average(row) for rank, row in zip(numbers, table, strict=True) if rank is not None},
        ranks=ranks,
        late=late,
        imbalance_us=step.imbalance_us,
        lateness=lateness(digests, named, table, why),
        expert_load=expert_load(table),
        memory=[(d.rank, d.report.memory) for d in digests if d.report.memory is not None],
        world_size=max((d.world_size for d in digests if d.world_size), default=None),
        untraced=_untraced(digests),
        unaligned=tuple(str(place) for place, clock in zip(named, clocks, strict=True) if clock.root != clocks[0].root),
        classified=min(d.report.coverage.device_time_classified for d in digests),
        cut_short=tuple(f"{text}: {d.report.path}" for d in digests if (text := d.cut_short)),
        on_cpu=all(d.on_cpu for d in digests),
        outcome=outcome,
    )


def _set_waiting_by_cause(each: list[list[RankStep]], shared: Sequence[Sequence[int]], why: Sequence[Causes]) -> None:
    for steps, of, kept in zip(each, why, shared, strict=True):
        for at, k in enumerate(kept):
            waited_us = steps[k].waiting_us - steps[k].waiting_by_kind.get(PIPELINE, 0.0)
            steps[k] = replace(steps[k], waiting_by_cause=scaled_down(of.of_step(at), waited_us))


def _set_imbalance(each: list[list[RankStep]], shared: Sequence[Sequence[int]]) -> None:
    for ks in zip(*shared, strict=True):
        lost = imbalance_us([steps[k] for steps, k in zip(each, ks, strict=True)])
        for steps, k in zip(each, ks, strict=True):
            steps[k] = replace(steps[k], imbalance_us=lost)


def _untraced(digests: Sequence[Digest]) -> dict[str, list[int]]:
    """Returns, by kind of communication, the untraced ranks of its process groups, as far as NCCL's arguments list the
    ranks."""
    traced = {d.rank for d in digests}
    found: dict[str, set[int]] = defaultdict(set)
    for d in digests:
        for call in d.collectives.calls:
            found[call.kind] |= set(call.ranks) - traced
    return {kind: sorted(ranks) for kind, ranks in found.items() if ranks}


def with_memory(job: Job, reports: Sequence[TraceReport]) -> Job:
    """Returns the job with the memory of ranks that have a snapshot but no trace."""
    more = [(report.rank, report.memory) for report in reports if report.memory is not None]
    return replace(job, memory=[*job.memory, *more])


def _one_clock(digests: Sequence[Digest]) -> list[list[tuple[int, float]]]:
    """Returns groups of ranks that are in one file, as (index, origin)."""
    files: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, d in enumerate(digests):
        files[d.report.path].append((place, d.origin_us))
    return list(files.values())


def _warm_up(digests: Sequence[Digest], shared: Sequence[Sequence[int]]) -> list[float]:
    """Returns how long each shared step that is warm-up took."""
    took = [max(d.steps[k].duration_us for d, k in zip(digests, ks, strict=True)) for ks in zip(*shared, strict=True)]
    return took[: warm_up(took)]


def _shared_steps(digests: Sequence[Digest]) -> list[list[int]]:
    """Returns, for each rank, the numbers of the steps that all ranks have: matched by name, or by order if no name is
    shared."""
    names = [[window.name for window in d.windows] for d in digests]
    shared = [name for name in names[0] if all(name in others for others in names)]
    if shared:
        return [[own.index(name) for name in shared] for own in names]
    fewest = min(len(own) for own in names)
    return [list(range(max(fewest, 1))) for _ in names]
