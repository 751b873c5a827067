"""The order in which a pipeline rank processes its micro batches: 1F1B, and interleaved over model chunks.

As in Megatron-Core's `pipeline_parallel/schedules.py` (0.16.1): warm-up forwards, then forwards and backwards
alternating, then the remaining backwards. Under EP overlap a forward and the backward after it run as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from trainer.recipe.layout import layout_of
from trainer.recipe.schema import Recipe


class Pass(NamedTuple):
    """One micro batch through one model chunk of a rank, forward or backward."""

    forward: bool
    chunk: int
    microbatch: int


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The schedule of a pipeline.

    `group`: micro batches that a rank sends through one chunk before it changes to the next. `merged`: under EP
    overlap, neighbouring passes of the steady part run as one.
    """

    pp: int
    vpp: int
    microbatches: int
    group: int
    merged: bool

    def warm_up(self, rank: int) -> int:
        """Returns the number of forward passes of a rank before its first backward."""
        if self.vpp == 1:
            ahead = self.pp - rank - 1 + self.merged
        else:
            ahead = 2 * (self.pp - rank - 1) + (self.vpp - 1) * self.group + self.merged
        return min(ahead, self.vpp * self.microbatches)

    def order(self, rank: int) -> tuple[Pass, ...]:
        return _order(self, rank)


def schedule_of(recipe: Recipe) -> Schedule:
    layout = layout_of(recipe)
    return Schedule(
        pp=layout.pp,
        vpp=layout.vpp,
        microbatches=recipe.num_microbatches,
        group=(recipe.knob("microbatch_group_size_per_vp_stage") or layout.pp) if layout.vpp > 1 else 1,
        merged=bool(recipe.knob("overlap_moe_expert_parallel_comm")),
    )


@cache
def _order(schedule: Schedule, rank: int) -> tuple[Pass, ...]:
    forwards = _chunks_in_turn(schedule)
    backwards = [(schedule.vpp - 1 - chunk, microbatch) for chunk, microbatch in forwards]
    ahead = schedule.warm_up(rank)
    passes = [Pass(True, *one) for one in forwards[:ahead]]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        passes += [Pass(True, *forward), Pass(False, *backward)]
    return (*passes, *(Pass(False, *one) for one in backwards[len(forwards) - ahead :]))


def _chunks_in_turn(schedule: Schedule) -> list[tuple[int, int]]:
    """Returns (chunk, micro batch) of every forward in order: a group of micro batches through each chunk, then the
    next group."""
    return [
        (chunk, microbatch)
        for first in range(0, schedule.microbatches, schedule.group)
        for chunk in range(schedule.vpp)
        for microbatch in range(first, min(first + schedule.group, schedule.microbatches))
    ]
