"""Chooses the ranks of a job to trace: enough for every role of a rank, few enough to write and read."""

from __future__ import annotations

from trainer.recipe import Recipe

MAX_TRACES = 8  # most traces per burst: a rank's trace takes seconds to write, and the trainer waits for the slowest


def traced_ranks(recipe: Recipe, *, watched: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Returns the traced ranks: the first and the last of the job, `watched` ones, and one of each EP group in the
    first and in the last pipeline stage, thinned out evenly to MAX_TRACES in all. Ranks are numbered in Megatron's
    default order: TP fastest, then CP and EP within DP, PP slowest."""
    world, pp = recipe.world_size, recipe.parallelism.pipeline_model_parallel_size
    stage = max(1, world // pp)
    group = recipe.parallelism.expert_model_parallel_size * recipe.expert_tensor_parallel_size
    firsts = list(range(0, stage, max(1, min(group, stage))))
    wanted = [0, world - 1, *(rank for rank in watched if rank < world)]
    stages = [0] if pp == 1 else [0, world - stage]
    others = [start + first for first in firsts for start in stages]
    room = max(0, MAX_TRACES - len(set(wanted)))
    return tuple(sorted({*wanted, *_thinned([rank for rank in others if rank not in wanted], room)}))


def _thinned(ranks: list[int], most: int) -> list[int]:
    """Returns at most `most` of the ranks, evenly spread."""
    if len(ranks) <= most:
        return ranks
    return [ranks[index * len(ranks) // most] for index in range(most)]
