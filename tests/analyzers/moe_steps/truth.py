"""Computes what a program really loses to each cause: it runs again without that cause.

The share of the step that this saves is what a wall could give back. The label follows from these figures alone, never
from the analyzers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from analyzers.diagnosis import Wall
from tests.analyzers.moe_steps.program import Allocate, Host, Instruction, Kernel, Machine, Sync

Steps = Sequence[Sequence[Instruction]]


class Loss(StrEnum):
    """A kind of lost time that a test can take away: a wall, the pipeline bubble or imbalance."""

    MEMORY = "memory"
    COMMUNICATION = "communication"
    HOST = "host"
    COMPUTE = "compute"
    BUBBLE = "bubble"
    IMBALANCE = "imbalance"


# the losses that are no walls, and how a diagnosis names them
NO_WALL = {Loss.BUBBLE: r"bubble", Loss.IMBALANCE: r"slower rank|imbalance|uneven"}
WORTH_NAMING = 0.05  # share of the step below which no wall is worth naming
ALL_COMPUTE = 0.80  # share of compute from which it is the wall, if nothing else is worth naming
CLOSE = 0.03  # share of the step: losses that differ by less need not be distinguished


@dataclass(frozen=True, kw_only=True)
class Truth:
    """gain: share of an average step that taking each loss away saves, 0..1."""

    step_us: float
    computing: float  # share of the step in which the busiest rank computes
    gain: Mapping[Loss, float]

    @property
    def leader(self) -> Loss | None:
        """Returns the loss that costs most, or compute if it is nearly all of the step; None if none is worth
        naming."""
        if self._all_compute(slack=0.0):
            return Loss.COMPUTE
        loss = max(self.gain, key=lambda one: self.gain[one])
        return loss if self.gain[loss] >= WORTH_NAMING else None

    @property
    def accepted(self) -> set[Wall]:
        """Returns the verdicts that count as right; several if losses are nearly equal."""
        leader = self.leader
        right = {Wall.UNDETERMINED if leader is None or leader in NO_WALL else Wall(leader)}
        by_gain = sorted(self.gain.values(), reverse=True)
        near_bounds = self._all_compute(slack=CLOSE) != self._all_compute(slack=-CLOSE)
        if by_gain[0] - by_gain[1] < CLOSE and leader is not Loss.COMPUTE:
            right.add(Wall.UNDETERMINED)
        if leader is not None and self.gain[leader] < WORTH_NAMING + CLOSE and leader is not Loss.COMPUTE:
            right.add(Wall.UNDETERMINED)
        return right | ({Wall.UNDETERMINED, Wall.COMPUTE} if near_bounds else set())

    def _all_compute(self, *, slack: float) -> bool:
        others = max(gain for loss, gain in self.gain.items() if loss is not Loss.COMPUTE)
        return self.computing >= ALL_COMPUTE - slack and others < WORTH_NAMING + slack


def truth(steps: Steps, ranks: int, *, warm_up: int) -> Truth:
    """Returns the losses of the steps after the warm-up; the program must have at least one such step."""
    counted = len(steps) - warm_up
    step_us = _step_us(steps, ranks, warm_up)
    computing = max(
        sum(one.us[r] for step in steps[warm_up:] for one in step if isinstance(one, Kernel) and _computes(one))
        for r in range(ranks)
    )
    gain = {loss: 1 - _step_us(without(steps, loss), ranks, warm_up) / step_us for loss in Loss}
    return Truth(step_us=step_us, computing=computing / counted / step_us, gain=gain)


def _step_us(steps: Steps, ranks: int, warm_up: int) -> float:
    ends = [0.0, *Machine(ranks).run(steps)]
    return (ends[-1] - ends[warm_up]) / (len(steps) - warm_up)


def _computes(kernel: Kernel) -> bool:
    return kernel.category == "kernel" and not kernel.communication


def without(steps: Steps, loss: Loss) -> Steps:
    """Returns the program without one cause of loss."""
    change = REMEDIES[loss]
    return [[changed for one in step if (changed := change(one)) is not None] for step in steps]


def _none(times: tuple[float, ...]) -> tuple[float, ...]:
    return (0.0,) * len(times)


def _hide_communication(one: Any) -> Any:
    return one._replace(us=_none(one.us)) if isinstance(one, Kernel) and one.communication else one


def _free_host(one: Any) -> Any:
    if isinstance(one, Host):
        return one._replace(us=_none(one.us))
    return one._replace(launch_us=_none(one.launch_us)) if isinstance(one, Kernel) else one


def _enough_memory(one: Any) -> Any:
    if isinstance(one, Allocate) or getattr(one, "again", False):
        return None
    return one._replace(us=_none(one.us)) if isinstance(one, Kernel) and one.offload else one


def _fuse(one: Any) -> Any:
    return one._replace(us=_none(one.us)) if isinstance(one, Kernel) and one.fusable else one


def _no_bubble(one: Any) -> Any:
    return one._replace(wait_us=0.0) if isinstance(one, Kernel | Sync) and one.wait_us else one


def _balance(one: Any) -> Any:
    if not isinstance(one, Kernel) or len(set(one.us)) == 1:
        return one
    return one._replace(us=(sum(one.us) / len(one.us),) * len(one.us))


REMEDIES: Mapping[Loss, Callable[[Any], Any]] = {
    Loss.COMMUNICATION: _hide_communication,
    Loss.HOST: _free_host,
    Loss.MEMORY: _enough_memory,
    Loss.COMPUTE: _fuse,
    Loss.BUBBLE: _no_bubble,
    Loss.IMBALANCE: _balance,
}
