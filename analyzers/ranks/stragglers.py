"""Finds the rank that the others wait for, how late it enters which communication, and the part of its step that makes
it late. Parts are compared with the median rank's, without waiting: the part that exceeds it most is where the rank
loses its time. If that is the experts, it is load imbalance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.diagnosis import RankTime
from analyzers.intervals import Floats
from analyzers.kernel_classes import GROUPED_GEMM
from analyzers.one_rank.digest import Digest
from analyzers.one_rank.progress import EXPERTS, UNROUTED
from analyzers.one_rank.rank_step import HOST_PART, RankStep, average
from analyzers.ranks.clocks import Clock, median
from analyzers.ranks.waiting import Waits
from analyzers.wording import KIND_NAMES, ms, part_name

COMPUTE = "compute"
MIN_OTHER_WORK = 0.1  # share of the part's time: with less other work a slower device cannot be recognised
MIN_GROWTH_RATIO = 0.5  # share of the part's growth: if other work grows as much, the device is slower
LATE_SHARE = 0.005  # share of the step: ranks that are less late are on time
MIN_EXPLAINED = 0.3  # share of the lateness: a part that is longer by less does not explain it


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rank of the job and how it is shown: `rank 5`, or `rank 0 device 3` if one process has several devices."""

    rank: int | None = None
    device: int | None = None

    def __str__(self) -> str:
        named = {"rank": self.rank, "device": self.device}
        return " ".join(f"{what} {number}" for what, number in named.items() if number is not None) or "a rank"


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The rank that enters collectives latest.

    in_every_step: it enters `kind` late in each step; in_part_us: its time for `part`, where it falls behind;
    middle_us: the median rank's time for it. part is None if no part explains the lateness.
    """

    place: Place
    kind: str
    late_us: float
    in_every_step: bool
    part: str | None
    in_part_us: float = 0.0
    middle_us: float = 0.0

    def __str__(self) -> str:
        how_often = "in every step" if self.in_every_step else "per step on average"
        comes = f"{self.place} arrives {ms(self.late_us)} ms late to {KIND_NAMES[self.kind]} {how_often}"
        if self.part is None:
            return comes
        return (
            f"{comes}: it spends {ms(self.in_part_us)} ms in {part_name(self.part)}, {ms(self.middle_us)} ms "
            "on the median rank"
        )


@dataclass(frozen=True, kw_only=True)
class ExpertLoad:
    """The imbalance of the experts in an average step.

    beyond_mean_us: the expert compute of the busiest rank minus the mean; ratio: the busiest rank's over the mean.
    """

    beyond_mean_us: float = 0.0
    ratio: float = 1.0


def places(ranks: Sequence[Digest]) -> list[Place]:
    """Returns the ranks' places; with the device if the rank alone is ambiguous."""
    numbers = [rank.rank for rank in ranks]
    return [
        Place(
            rank=rank.rank,
            device=rank.report.devices[0]
            if rank.report.devices and (rank.rank is None or numbers.count(rank.rank) > 1)
            else None,
        )
        for rank in ranks
    ]


def imbalance_us(ranks: Sequence[RankStep]) -> float:
    """Returns how much shorter a step would be with evenly loaded ranks: the longest duration without bubble, minus the
    mean own time. Ranks that wait in turns, in different layers, lose as much as if all waited for one rank. ranks:
    each rank's time of the same step."""
    longest = max(one.duration_us - one.pipeline_wait_us for one in ranks)
    return max(0.0, longest - float(np.mean([one.own_us for one in ranks])))


def expert_load(table: Sequence[Sequence[RankStep]]) -> ExpertLoad:
    """Computes the experts' load. table: the S steps of R ranks."""
    experts = np.array([[step.compute_by_class.get(GROUPED_GEMM, 0.0) for step in row] for row in table])
    busiest, mean = experts.max(axis=0), experts.mean(axis=0)
    ratio = np.divide(busiest, mean, out=np.ones(len(mean)), where=mean > 0)
    return ExpertLoad(beyond_mean_us=float((busiest - mean).mean()), ratio=float(ratio.mean()))


def rank_times(
    ranks: Sequence[Digest], clocks: Sequence[Clock], waits: Sequence[Waits], table: Sequence[Sequence[RankStep]]
) -> tuple[list[RankTime], Straggler | None]:
    """Returns the average step of each rank with a number, and the rank that enters collectives latest, None if none is
    late."""
    if len(ranks) < 2:
        return [], None
    steps = [average(row) for row in table]
    parts = [_parts(step) for step in steps]
    middle = _middle(parts)
    waited_in = {kind for step in steps for kind, us in step.waiting_by_kind.items() if us > 0}
    named = places(ranks)
    found: list[RankTime] = []
    latest: Straggler | None = None
    for k, (rank, step) in enumerate(zip(ranks, steps, strict=True)):
        late = _late(named[k], waits[k], step, parts[k], middle, waited_in)
        if late is not None and (latest is None or late.late_us > latest.late_us):
            latest = late
        if rank.rank is not None:
            found.append(
                RankTime(
                    rank=rank.rank,
                    device=named[k].device,
                    clock_offset_us=_offset_us(ranks, clocks, k),
                    step_us=step.duration_us,
                    own_us=step.own_us,
                    waiting_us=step.waiting_us,
                    waiting_by_kind=dict(step.waiting_by_kind),
                    expert_compute_us=step.compute_by_class.get(GROUPED_GEMM, 0.0),
                    late_us=late.late_us if late else 0.0,
                    late_to=late.kind if late else None,
                    late_in=late.part if late else None,
                )
            )
    return found, latest


def _offset_us(ranks: Sequence[Digest], clocks: Sequence[Clock], k: int) -> float | None:
    """Returns the clock's offset at the start of the rank's trace, µs; None if it is not aligned with the first
    rank's."""
    if clocks[k].root != clocks[0].root:
        return None
    return clocks[k].shift_us + (ranks[0].origin_us - ranks[k].origin_us)


def _late(
    place: Place,
    waits: Waits,
    step: RankStep,
    parts: dict[str, float],
    middle: dict[str, float],
    waited_in: set[str],
) -> Straggler | None:
    """Returns how late a rank enters the kind of communication in which it is latest, of those in which ranks wait;
    None if that is less than LATE_SHARE of the step."""
    late: dict[str, Floats] = {kind: us for kind, us in waits.late_us.items() if kind in waited_in}
    if not late:
        return None
    kind = max(sorted(late), key=lambda name: float(late[name].mean()))
    late_us = float(late[kind].mean())
    if late_us < LATE_SHARE * step.duration_us:
        return None
    part, own_us, middle_us = _behind(parts, middle)
    return Straggler(
        place=place,
        kind=kind,
        late_us=late_us,
        in_every_step=bool((late[kind] >= late_us / 2).all()),
        part=part if own_us - middle_us >= MIN_EXPLAINED * late_us else None,
        in_part_us=own_us,
        middle_us=middle_us,
    )


def _behind(parts: Mapping[str, float], middle: Mapping[str, float]) -> tuple[str, float, float]:
    """Returns the part that exceeds the median rank's most, and the time of both ranks for it.

    That is all compute if the work that does not depend on routing is longer as well: a slower device is not load
    imbalance.
    """
    part = max(sorted(parts), key=lambda name: parts[name] - middle.get(name, 0.0))
    own_us, middle_us = parts[part], middle.get(part, 0.0)
    rest = [name for name in (EXPERTS, *UNROUTED) if name != part]
    rest_us, rest_middle_us = (sum(of.get(name, 0.0) for name in rest) for of in (parts, middle))
    if part not in (EXPERTS, *UNROUTED) or not middle_us or rest_middle_us < MIN_OTHER_WORK * middle_us:
        return part, own_us, middle_us
    if rest_us / rest_middle_us - 1 < MIN_GROWTH_RATIO * (own_us / middle_us - 1):
        return part, own_us, middle_us
    return COMPUTE, own_us + rest_us, middle_us + rest_middle_us


def _middle(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for own in parts for name in own})
    table = np.array([[own.get(name, 0.0) for own in parts] for name in names])
    return dict(zip(names, median(table).tolist(), strict=True)) if names else {}


def _parts(step: RankStep) -> dict[str, float]:
    """Returns a rank's own time by part, without waiting; the keys are the values of `late_in`."""
    hosted = {f"{HOST_PART}{what}": us for what, us in step.host_by_activity.items()}
    return {
        **{EXPERTS if name == GROUPED_GEMM else name: us for name, us in step.compute_by_class.items()},
        **(hosted or {HOST_PART.rstrip(":"): step.host_us}),
        **{kind: us - step.waiting_by_kind.get(kind, 0.0) for kind, us in step.exposed_by_kind.items()},
        "copies": step.to_host_us + step.from_host_us,
        "sync": step.sync_us,
        "unattributed": step.unattributed_us,
    }
