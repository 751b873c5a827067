"""The result of a memory simulation: peaks by pipeline rank, and the first moment at which a limit is exceeded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.burst import BurstPhase
from trainer.engines.simulated.memory.state import State

GIB = 2.0**30
STEPS = (0, 1)  # the optimizer's moments appear in the first step: the second has all memory
LAST = 2**62  # the optimizer step comes after every pass


class OutOfMemory(NamedTuple):
    """An allocation that fails. `needed_gib`: memory needed on the device at that moment."""

    phase: BurstPhase
    pipeline_rank: int
    step: int
    needed_gib: float


class Moment(NamedTuple):
    """The bytes that the allocator needs at one moment of a pipeline rank; `at` orders the moments of a step."""

    at: int
    phase: BurstPhase
    needed: float


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes of one pipeline rank.

    `peaks`: float64[passes], the peak of each pass above what stays; `forward`: bool[passes]; `left`: left over after
    the passes of a step; `always`: workspaces; `pool`: owned by CUDA graphs; `pool_stays`: the passes' own memory
    belongs to a graph too, so that the optimizer cannot use it.
    """

    state: State
    peaks: npt.NDArray[np.float64]
    forward: npt.NDArray[np.bool_]
    left: float
    always: float
    pool: float
    pool_stays: bool

    @property
    def passes(self) -> float:
        """Returns the highest peak of all passes."""
        return float(self.peaks.max(initial=0.0)) + self.state.units

    @property
    def resting(self) -> float:
        """Returns the bytes between steps, after the first; gradient copies are freed only in the next step."""
        return self.state.all + self.always + self.state.step

    @property
    def needed(self) -> float:
        """Returns the allocator's peak bytes, which are reached in the second step, when all state exists."""
        return max(self._under(STEPS[-1]) + self.passes - self.state.units, self._in_optimizer())

    @property
    def allocated(self) -> float:
        """Returns the peak as torch counts it: memory of a graph counts only while it is captured."""
        return self.state.all + self.always + max(self.pool, self.passes, self.state.step)

    def first_over(self, limit: float, *, step: int) -> Moment | None:
        """Returns the first moment of a step that needs more than `limit` bytes."""
        if step == 0 and self.state.built > limit:
            return Moment(at=0, phase=BurstPhase.INIT, needed=self.state.built)
        under = self._under(step)
        over = np.flatnonzero(self.peaks > limit - under)
        if over.size:
            phase = BurstPhase.FORWARD if self.forward[over[0]] else BurstPhase.BACKWARD
            return Moment(at=1 + int(over[0]), phase=phase, needed=under + float(self.peaks[over[0]]))
        if (needed := self._in_optimizer()) > limit:
            return Moment(at=LAST, phase=BurstPhase.OPTIMIZER, needed=needed)
        return None

    def _under(self, step: int) -> float:
        """Returns the bytes that stay allocated during the passes of a step."""
        moments = self.state.moments if step else 0.0
        return self.state.built + moments + self.state.units + self.always + self.pool

    def _in_optimizer(self) -> float:
        """Returns the bytes that the optimizer step needs."""
        graph = self.pool + self.passes * self.pool_stays
        return self.state.all + self.state.step + self.always + graph


@dataclass(frozen=True, kw_only=True)
class SimulatedMemory:
    """The memory of a recipe. Tuples are by pipeline rank, each for its hottest rank; its tensor, context and data
    ranks hold no more.

    `outside_gib`: CUDA context, NCCL, the dispatcher's buffers; `usable`: the share of the allocator's memory that
    fragmentation leaves; `second_step_gib`: growth in the second step other than the optimizer's state.
    """

    ranks: tuple[RankMemory, ...]
    outside_gib: float
    usable: float
    second_step_gib: float

    @property
    def peak_gib(self) -> tuple[float, ...]:
        """Returns the allocator's peak by pipeline rank, fragmentation included."""
        return tuple(self._taken(rank.needed, STEPS[-1]) for rank in self.ranks)

    @property
    def allocated_gib(self) -> tuple[float, ...]:
        """Returns the peak by pipeline rank as `torch.cuda.max_memory_allocated` reports it."""
        return tuple(rank.allocated / GIB + self.second_step_gib for rank in self.ranks)

    @property
    def resting_gib(self) -> tuple[float, ...]:
        """Returns the memory allocated between steps."""
        return tuple(rank.resting / GIB for rank in self.ranks)

    @property
    def state_gib(self) -> tuple[float, ...]:
        """Returns the memory of model and optimizer."""
        return tuple(rank.state.all / GIB for rank in self.ranks)

    def out_of_memory(self, limit_gib: float | None) -> OutOfMemory | None:
        """Returns the first failed allocation within two steps, else None. `limit_gib`: of a device; None: no limit."""
        if limit_gib is None or max(self.peak_gib) + self.outside_gib <= limit_gib:
            return None
        for step in STEPS:
            room = (limit_gib - self.outside_gib - self.second_step_gib * step) * self.usable * GIB
            found = [(rank.first_over(room, step=step), number) for number, rank in enumerate(self.ranks)]
            # ranks reach their passes one by one as the pipeline fills
            faults = [(moment.at + number, number, moment) for moment, number in found if moment]
            if faults:
                _, number, moment = min(faults)
                return OutOfMemory(moment.phase, number, step, self._taken(moment.needed, step) + self.outside_gib)
        return None

    def _taken(self, needed: float, step: int) -> float:
        return needed / GIB / self.usable + self.second_step_gib * step
