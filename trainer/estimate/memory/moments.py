"""The activations that a pipeline rank keeps for backward at its peak: layers times micro batches, by chunk.

Source of the schedule: Megatron-Core schedules.py (`get_pp_rank_microbatches`), 1F1B and interleaved 1F1B. Shapes: N
rows, P pipeline ranks, V model chunks per rank; U distinct pairs of a split of layers and a schedule, M moments.
"""

from __future__ import annotations

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats, Integers

LayersHeld = dict[bool, Floats]  # MoE or not -> layers times micro batches, [N, P]


def layers_held(candidates: Candidates) -> tuple[LayersHeld, LayersHeld]:
    """Returns, by kind, the layers times micro batches whose activations each rank holds for backward, at two moments:
    when it holds most, and when it holds most while its last chunk runs, whose head computes the loss. MTP layers are
    counted by their own feed-forward."""
    chunks, (split, schedule, of_row) = candidates.chunks, _different(candidates)
    held, at_loss = _moments(*(part[:, None, None] for part in schedule), shape=chunks.moe.shape[1:])
    dense, moe = chunks.dense[split], chunks.moe[split]
    layers = np.einsum("umpv,upv->ump", held, dense + moe)
    last = (schedule[0] - 1).astype(np.int64)
    found = []
    for weights in (layers, np.where(at_loss, layers, -1.0)):
        first, second = np.ogrid[: held.shape[0], : held.shape[2]]
        fullest = held[first, weights.argmax(axis=1), second]  # [U, P, V]
        of_kind = {False: (fullest * dense).sum(axis=2), True: (fullest * moe).sum(axis=2)}
        found.append(_of_rows(candidates, of_kind, fullest[np.arange(len(last)), :, last], of_row))
    return found[0], found[1]


def _of_rows(candidates: Candidates, of_kind: LayersHeld, of_last: Floats, of_row: Integers) -> LayersHeld:
    """Returns the layers held by distinct pair [U] as rows [N], with the MTP layers of the last chunk added."""
    found = {is_moe: layers[of_row] for is_moe, layers in of_kind.items()}
    last_kind = candidates.base.architecture.mtp_kind.feed == "moe"
    return found | {last_kind: found[last_kind] + candidates.stages.mtp * of_last[of_row]}


def _different(candidates: Candidates) -> tuple[Integers, Floats, Integers]:
    """Returns the distinct pairs: split [U], schedule [5, U] (chunks, PP, group, forwards ahead, micro batches); and
    the index of each row's pair."""
    several = candidates.vpp > 1
    ahead = candidates.on("overlap_moe_expert_parallel_comm") & several
    columns = (
        candidates.chunks.of_row,
        candidates.vpp,
        candidates.pp,
        candidates.group,
        ahead,
        candidates.microbatches,
    )
    keys = np.stack([np.atleast_1d(column) for column in np.broadcast_arrays(*columns)]).astype(np.int64)
    # one number for each pair: faster to sort than columns
    numbers = np.ravel_multi_index(tuple(keys), tuple(keys.max(axis=1) + 1))
    _, first, of_row = np.unique(numbers, return_index=True, return_inverse=True)
    different = keys[:, first]
    return different[0], different[1:].astype(float), of_row


def _moments(
    chunks: Floats, pp: Floats, group: Floats, ahead: Floats, batches: Floats, *, shape: tuple[int, ...]
) -> tuple[Floats, Flags]:
    """Returns (micro batches held by each chunk at every possible peak [U, M, P, V], whether the last chunk runs then
    [U, M, P]).

    A peak is possible after the warm-up and one more forward pass. It is also possible whenever a chunk has run a whole
    group of micro batches since then: by that time as many backward passes are done, those of the last chunk first. The
    arguments are [U, 1, 1]; `ahead`: additional forward passes that EP overlap does before the first backward pass.
    """
    rank, number = np.arange(shape[0], dtype=float), np.arange(shape[1], dtype=float)
    behind = np.maximum(0.0, pp - rank - 1)  # stages after this one
    several = chunks > 1
    done = np.where(several, 2 * behind + (chunks - 1) * group + 1 + ahead, behind + 1)
    done = np.minimum(done, batches * chunks)
    turns = number[:, None] * group
    later = np.concatenate([turns + 0 * done, turns + np.mod(-done, group)], axis=1) * several
    later = np.minimum(later, batches * chunks - done)
    forwards, rest = _passed(done + later, number, group, chunks)
    backwards, _ = _passed(later, chunks[..., None] - 1 - number, group, chunks)
    held = np.where(number < chunks[..., None], np.maximum(0.0, forwards - backwards), 0.0)
    return held, (rest == 0) | (rest > (chunks - 1) * group)


def _passed(passes: Floats, turn: Floats, group: Floats, chunks: Floats) -> tuple[Floats, Floats]:
    """Returns (how many of the first `passes` passes are of each chunk, passes done of the current round).

    Chunks take turns, with a group of micro batches each.
    """
    rounds = np.floor(passes / (group * chunks))
    rest = passes - rounds * group * chunks
    of_chunk = np.clip(rest[..., None] - turn * group[..., None], 0.0, group[..., None])
    return rounds[..., None] * group[..., None] + of_chunk, rest
