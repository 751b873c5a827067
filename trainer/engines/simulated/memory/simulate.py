"""Simulates the memory of a pipeline schedule: every pass of every pipeline rank allocates and frees.

Micro batches beyond the steady state repeat it, so only as many are simulated as reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from trainer.engines.simulated.memory.chunk import Chunk
from trainer.engines.simulated.memory.constants import constant
from trainer.engines.simulated.memory.load import usual_imbalance
from trainer.engines.simulated.memory.outside import outside_gib, workspace_bytes
from trainer.engines.simulated.memory.rank import chunks_of_ranks, layer_chunk
from trainer.engines.simulated.memory.result import GIB, RankMemory, SimulatedMemory
from trainer.engines.simulated.memory.sizes import Sizes
from trainer.engines.simulated.memory.state import State, state_of_ranks
from trainer.engines.simulated.schedule import Schedule, schedule_of
from trainer.recipe.layout import layout_of
from trainer.recipe.machine import Machine
from trainer.recipe.schema import Recipe

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
STEADY_GROUPS = 2  # groups of micro batches after the warm-up, which show the steady state


def simulate_memory(
    recipe: Recipe, machine: Machine, *, imbalance: float | Sequence[float] | None = None
) -> SimulatedMemory:
    """Returns the memory of a recipe on a machine.

    `imbalance`: tokens of the hottest expert rank over the mean, one value or one per pipeline rank; None: by the
    machine's routing.
    """
    loads = _loads(recipe, machine, imbalance)
    sizes = Sizes(recipe=recipe, load=max(loads), quantized=False)
    stage = _Stages.of(recipe, machine, sizes)
    last = layout_of(recipe).pp - 1
    parts = zip(chunks_of_ranks(recipe, loads), state_of_ranks(recipe), strict=True)
    return SimulatedMemory(
        ranks=tuple(
            stage.simulate(rank, chunks, state, always=workspace_bytes(sizes, has_head=rank == last))
            for rank, (chunks, state) in enumerate(parts)
        ),
        outside_gib=outside_gib(recipe, sizes, machine),
        usable=1 - lost_to_fragmentation(recipe, machine),
        second_step_gib=machine.memory.second_step_gib,
    )


@dataclass(frozen=True, kw_only=True)
class _Stages:
    """Settings that all pipeline ranks share.

    `factor` multiplies activations; `ahead`: bytes that arrive for the next pass; `static`: bytes of a captured layer
    in addition to its tensors; `early`: attention's tensors are freed early under EP overlap; `pool_stays`: all passes
    are one graph.
    """

    schedule: Schedule
    factor: float
    ahead: float
    static: float
    early: bool
    pool_stays: bool

    @classmethod
    def of(cls, recipe: Recipe, machine: Machine, sizes: Sizes) -> _Stages:
        arrives = recipe.knob("overlap_p2p_comm") and layout_of(recipe).vpp > 1
        return cls(
            schedule=shortened(schedule_of(recipe)),
            factor=machine.memory.activations * _unfused(recipe),
            ahead=2 * sizes.hidden if arrives else 0.0,  # bytes of an input and of a gradient
            static=constant("graph_gradients") * sizes.hidden,
            early=bool(recipe.knob("ep_overlap_early_attn_memory_release")),
            pool_stays=recipe.knob("cuda_graph_impl") == "full_iteration",
        )

    def simulate(self, rank: int, chunks: list[Chunk], state: State, *, always: float) -> RankMemory:
        forward, chunk = _passes(self.schedule, rank)
        sign = np.where(forward, 1.0, -1.0)
        kept = np.array([each.kept for each in chunks])[chunk]
        level = np.cumsum(sign * kept)
        # bytes that other passes hold: without those that this forward pass keeps or this backward pass releases
        start = np.where(forward, level - kept, level)
        fullest = np.array([[each.backward for each in chunks], [each.forward for each in chunks]])
        peaks = start + fullest[forward.astype(int), chunk]
        if self.schedule.merged:
            self._merge(peaks, start, rank, chunk, chunks)
        captured = np.array([each.captured + self.static * each.graphs for each in chunks])[chunk]
        return RankMemory(
            state=state,
            peaks=(peaks + self.ahead) * self.factor,
            forward=forward,
            left=float(level[-1]) + sum(each.left_over for each in chunks),
            always=always,
            pool=float(np.cumsum(sign * captured).max(initial=0.0)) * self.factor,
            pool_stays=self.pool_stays,
        )

    def _merge(self, peaks: Floats, start: Floats, rank: int, chunk: Integers, chunks: list[Chunk]) -> None:
        """Replaces the peaks of passes under EP overlap: passes of the steady state run in pairs, a forward and a
        backward, with one peak."""
        first = self.schedule.warm_up(rank)
        pairs = self.schedule.vpp * self.schedule.microbatches - first
        ones = first + 2 * np.arange(pairs)
        together = np.array([[one.peak_with(two, early=self.early) - two.kept for two in chunks] for one in chunks])
        peaks[ones] = start[ones] + together[chunk[ones], chunk[ones + 1]]
        peaks[ones + 1] = peaks[ones]


def layer_kept_gib(recipe: Recipe, machine: Machine, *, moe: bool) -> float:
    """Returns the GiB that one layer, with experts or without, keeps per micro batch for backward at an even load."""
    return layer_chunk(recipe, moe=moe).kept * machine.memory.activations * _unfused(recipe) / GIB


def layer_peak_gib(recipe: Recipe, machine: Machine, *, moe: bool) -> float:
    """Returns the GiB of activations and their gradients at the peak of one layer's forward and backward, with experts
    or without, at an even load."""
    chunk = layer_chunk(recipe, moe=moe)
    return max(chunk.forward, chunk.backward) * machine.memory.activations * _unfused(recipe) / GIB


def shortened(schedule: Schedule) -> Schedule:
    """Returns the schedule with only as many micro batches as are needed to reach its peaks."""
    groups = -(-schedule.warm_up(0) // (schedule.vpp * schedule.group)) + STEADY_GROUPS
    most = groups * schedule.group
    if schedule.microbatches <= most:
        return schedule
    return replace(schedule, microbatches=most + (schedule.microbatches - most) % schedule.group)


@cache
def _passes(schedule: Schedule, rank: int) -> tuple[Flags, Integers]:
    """Returns (which passes run forward, the chunk of each)."""
    order = schedule.order(rank)
    return np.array([one.forward for one in order]), np.array([one.chunk for one in order])


def _loads(recipe: Recipe, machine: Machine, imbalance: float | Sequence[float] | None) -> tuple[float, ...]:
    if imbalance is None:
        return usual_imbalance(recipe, machine)
    return (float(imbalance),) * layout_of(recipe).pp if isinstance(imbalance, int | float) else tuple(imbalance)


def lost_to_fragmentation(recipe: Recipe, machine: Machine) -> float:
    """Returns the share of memory that torch's caching allocator loses to fragmentation; 0 on CPUs, which do not use
    it."""
    if recipe.hardware.is_cpu:
        return 0.0
    expandable = "expandable_segments:true" in (recipe.knob("PYTORCH_CUDA_ALLOC_CONF") or "").lower()
    return machine.memory.fragmentation * (constant("expandable_share") if expandable else 1.0)


def _unfused(recipe: Recipe) -> float:
    """Returns the ratio of memory kept by Megatron-Core's local layers on a CPU to that of the fused form; 1 on
    GPUs."""
    if not recipe.hardware.is_cpu:
        return 1.0
    return constant("cpu_unfused_fp32" if recipe.training.precision == "fp32" else "cpu_unfused_bf16")
