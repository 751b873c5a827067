"""What a play of memory found: peaks by pipeline rank, and where a limit is first exceeded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.burst import BurstPhase
from trainer.engines.simulated.memory.state import State

GIB = 2.0**30
STEPS = (0, 1)  # moments of the optimizer appear in the first one: the second has all
LAST = 2**62  # the optimizer step comes after every pass


class OutOfMemory(NamedTuple):
    """`needed_gib`: on the device, when the allocation failed."""

    phase: BurstPhase
    pipeline_rank: int
    step: int
    needed_gib: float


class Moment(NamedTuple):
    """Bytes that the allocator needs at one moment of a pipeline rank; `at` orders those of a step over all ranks."""

    step: int
    at: int
    phase: BurstPhase
    needed: float


@dataclass(frozen=True, kw_only=True)
class RankPlay:
    """Bytes of one pipeline rank. `peaks`: float64[passes], the fullest moment of each pass over what stays; `forward`:
    bool[passes]; `left`: what the passes of a step leave behind; `always`: workspaces; `pool`: what CUDA graphs own;
    `pool_stays`: the passes' own memory is a graph's too, and not the optimizer's to use."""

    state: State
    peaks: npt.NDArray[np.float64]
    forward: npt.NDArray[np.bool_]
    left: float
    always: float
    pool: float
    pool_stays: bool

    @property
    def passes(self) -> float:
        """The fullest moment of all passes."""
        return float(self.peaks.max(initial=0.0)) + self.state.units

    @property
    def resting(self) -> float:
        """Between steps, from the first one on; copies of gradients wait for the next step to be dropped."""
        return self.state.all + self.always + self.state.step

    @property
    def needed(self) -> float:
        """By the allocator, at the fullest moment."""
        return max(moment.needed for moment in self.turning_points())

    @property
    def allocated(self) -> float:
        """The fullest moment as torch counts it: what a graph owns counts while it is captured only."""
        return self.state.all + self.always + max(self.pool, self.passes, self.state.step)

    def turning_points(self) -> Iterator[Moment]:
        """The fullest moments of the second step, which has everything."""
        under = self.state.all + self.always + self.pool
        yield Moment(STEPS[-1], 0, BurstPhase.FORWARD, under + self.passes)
        yield Moment(STEPS[-1], LAST, BurstPhase.OPTIMIZER, under + self.passes * self.pool_stays + self.state.step)

    def moments(self, rank: int) -> Iterator[Moment]:
        """Every moment of the first two steps; a rank reaches its passes one by one as the pipeline fills."""
        yield Moment(0, 0, BurstPhase.INIT, self.state.built)
        for step in STEPS:
            under = self.state.built + self.state.moments * step + self.always + self.state.units + self.pool
            for at, (peak, forward) in enumerate(zip(self.peaks.tolist(), self.forward.tolist(), strict=True)):
                phase = BurstPhase.FORWARD if forward else BurstPhase.BACKWARD
                yield Moment(step, 1 + rank + at, phase, under + peak)
            over = self.pool + self.passes * self.pool_stays + self.state.step
            yield Moment(step, LAST, BurstPhase.OPTIMIZER, self.state.all + self.always + over)


@dataclass(frozen=True, kw_only=True)
class MemoryPlay:
    """Tuples are by pipeline rank, each for the hottest of its ranks: its tensor, context and data ranks hold no more.

    `outside_gib`: CUDA context, NCCL, the dispatcher's buffers; `usable`: share of the allocator's memory that
    fragmentation leaves; `second_step_gib`: what appears in the second step beside the optimizer's state."""

    ranks: tuple[RankPlay, ...]
    outside_gib: float
    usable: float
    second_step_gib: float

    @property
    def peak_gib(self) -> tuple[float, ...]:
        """What the allocator takes at the fullest moment, fragmentation included."""
        return tuple(self._taken(rank.needed, STEPS[-1]) for rank in self.ranks)

    @property
    def allocated_gib(self) -> tuple[float, ...]:
        """As `torch.cuda.max_memory_allocated` reports it."""
        return tuple(rank.allocated / GIB + self.second_step_gib for rank in self.ranks)

    @property
    def resting_gib(self) -> tuple[float, ...]:
        """Allocated between steps."""
        return tuple(rank.resting / GIB for rank in self.ranks)

    @property
    def state_gib(self) -> tuple[float, ...]:
        """Model and optimizer."""
        return tuple(rank.state.all / GIB for rank in self.ranks)

    def out_of_memory(self, limit_gib: float | None) -> OutOfMemory | None:
        """What fails first within two steps, where something does. `limit_gib`: of a device; None: there is none."""
        if limit_gib is None or max(self.peak_gib) + self.outside_gib <= limit_gib:
            return None
        faults = [fault for number in range(len(self.ranks)) if (fault := self._fault(number, limit_gib))]
        return min(faults)[-1] if faults else None

    def _fault(self, number: int, limit_gib: float) -> tuple[int, int, int, OutOfMemory] | None:
        for moment in self.ranks[number].moments(number):
            needed = self._taken(moment.needed, moment.step) + self.outside_gib
            if needed > limit_gib:
                return moment.step, moment.at, number, OutOfMemory(moment.phase, number, moment.step, needed)
        return None

    def _taken(self, needed: float, step: int) -> float:
        return needed / GIB / self.usable + self.second_step_gib * step
