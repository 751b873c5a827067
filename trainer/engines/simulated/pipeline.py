"""Simulates passes as dependencies between pipeline stages: a pass starts when its rank is free and its input has
arrived.

Bubbles follow from that. All micro batches of a stage are alike, so a pipeline is periodic after the warm-up: of a long
step, only the warm-up, some periods and the end are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trainer.engines.simulated.schedule import Pass, Schedule

STEADY_PERIODS = 2  # groups of micro batches simulated between warm-up and end; the first represents those left out


class Turn(NamedTuple):
    """The work of a rank at one time: one pass, or an interleaved forward and backward under EP overlap."""

    passes: tuple[Pass, ...]
    start_us: float
    end_us: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """The passes of a whole step.

    simulated: the schedule with fewer micro batches that was simulated; turns: [PP], in order of time, of its micro
    batches; period_us: the time of one group of micro batches.
    """

    schedule: Schedule
    simulated: Schedule
    turns: tuple[tuple[Turn, ...], ...]
    period_us: float

    @property
    def left_out(self) -> int:
        """Returns the number of micro-batch groups that were not simulated."""
        return (self.schedule.microbatches - self.simulated.microbatches) // self.schedule.group

    @property
    def more_us(self) -> float:
        return self.left_out * self.period_us

    def until_us(self, rank: int) -> float:
        """Returns when a rank's last pass ends in the whole step, µs."""
        return self.turns[rank][-1].end_us + self.more_us


Shape = tuple[tuple[bool, int], ...]  # (forward, chunk) of a turn's passes
Duration = Callable[[int, Shape], float]  # duration of a rank's turn, microseconds


def run_pipeline(schedule: Schedule, duration: Duration, *, send_us: float, overlapped: bool) -> Run:
    """Simulates a step.

    overlapped: a rank continues while its output is being sent; else it waits until it was sent.
    """
    simulated = shortened(schedule)
    turns = _simulate(simulated, duration, send_us if schedule.pp > 1 else 0.0, overlapped)
    return Run(schedule=schedule, simulated=simulated, turns=turns, period_us=_period(simulated, turns))


def shortened(schedule: Schedule) -> Schedule:
    """Returns the schedule with only as many micro batches as are needed to show everything but repetition."""
    needed = schedule.warm_up(0) // schedule.vpp + schedule.pp + STEADY_PERIODS * schedule.group
    over = max(0, schedule.microbatches - needed) // schedule.group
    return replace(schedule, microbatches=schedule.microbatches - over * schedule.group)


def steady(schedule: Schedule, rank: int) -> slice:
    """Returns the slice of a rank's turns in its steady state: the last but one whole group of micro batches between
    warm-up and end."""
    ahead, passes = schedule.warm_up(rank), schedule.microbatches * schedule.vpp
    each = 1 if schedule.merged else 2
    period = each * schedule.group * schedule.vpp
    end = ahead + each * (passes - ahead) - period
    return slice(max(ahead, end - period), max(ahead, end))


def _period(schedule: Schedule, turns: Sequence[Sequence[Turn]]) -> float:
    """Returns the period of the slowest rank, in µs."""
    return max((_window_us(own, steady(schedule, rank)) for rank, own in enumerate(turns)), default=0.0)


def _window_us(turns: Sequence[Turn], window: slice) -> float:
    if window.stop <= window.start:
        return 0.0
    since = turns[window.start - 1].end_us if window.start else 0.0
    return float(turns[window.stop - 1].end_us - since)


def _simulate(schedule: Schedule, duration: Duration, send_us: float, overlapped: bool) -> tuple[tuple[Turn, ...], ...]:
    pp, last = schedule.pp, schedule.pp * schedule.vpp - 1
    nothing: list[float | None] = [None] * schedule.microbatches
    forward = [nothing.copy() for _ in range(last + 1)]  # [stage][micro batch]: µs when an output arrives
    backward = [nothing.copy() for _ in range(last + 1)]
    work = [_turns(schedule, rank, duration) for rank in range(pp)]
    done, free = [0] * pp, [0.0] * pp
    turns: list[list[Turn]] = [[] for _ in range(pp)]
    pending = True
    while pending:
        pending = False
        for rank in range(pp):
            todo, place, now, own = work[rank], done[rank], free[rank], turns[rank]
            while place < len(todo):
                passes, us = todo[place]
                start = now
                for ahead, chunk, microbatch in passes:
                    stage = chunk * pp + rank
                    if ahead:
                        came = forward[stage - 1][microbatch] if stage else 0.0
                    else:
                        came = forward[stage][microbatch] if stage == last else backward[stage + 1][microbatch]
                    if came is None:
                        start = None
                        break
                    start = came if came > start else start
                if start is None:
                    break
                now = end = start + us
                own.append(Turn(passes, start, end))
                for ahead, chunk, microbatch in passes:
                    stage = chunk * pp + rank
                    sent = stage < last if ahead else stage > 0
                    (forward if ahead else backward)[stage][microbatch] = end + send_us if sent else end
                    if sent and not overlapped:
                        now = end + send_us
                place += 1
                pending = True
            done[rank], free[rank] = place, now
    return tuple(map(tuple, turns))


def _turns(schedule: Schedule, rank: int, duration: Duration) -> list[tuple[tuple[Pass, ...], float]]:
    """Returns the turns of a rank in order, each as (passes, duration)."""
    order, ahead = schedule.order(rank), schedule.warm_up(rank)
    if schedule.merged:
        end = len(order) - ahead
        woven = [tuple(order[at : at + 2]) for at in range(ahead, end, 2)]
        turns = [*((one,) for one in order[:ahead]), *woven, *((one,) for one in order[end:])]
    else:
        turns = [(one,) for one in order]
    us: dict[Shape, float] = {}
    found = []
    for passes in turns:
        shape = tuple((one[0], one[1]) for one in passes)
        if shape not in us:
            us[shape] = duration(rank, shape)
        found.append((passes, us[shape]))
    return found
