"""How many micro batches a pipeline rank holds activations of at once, by schedule.

Source: Megatron-Core schedules.py (`get_pp_rank_microbatches`): 1F1B and interleaved 1F1B.
"""

from __future__ import annotations

import numpy as np

from trainer.estimate.candidates import Candidates, Floats


def in_flight(candidates: Candidates) -> Floats:
    """Micro batches whose activations a rank holds at the fullest moment, [N, P]; a chunk counts as its share.

    Interleaved: the warm-up forwards of all chunks and one more, over the number of chunks.
    """
    ranks = np.arange(candidates.stages.exists.shape[1], dtype=float)
    behind = np.maximum(0.0, candidates.pp[..., None] - ranks - 1)  # stages after this one
    chunks, batches = candidates.vpp[..., None], candidates.microbatches[..., None]
    group = candidates.number("microbatch_group_size_per_vp_stage")
    group = np.where(group > 0, group, candidates.pp)[..., None]
    overlapped = candidates.on("overlap_moe_expert_parallel_comm")[..., None]
    interleaved = 2 * behind + (chunks - 1) * group + 1 + overlapped
    held = np.where(chunks > 1, interleaved, behind + 1)
    at_once: Floats = np.minimum(held, batches * chunks) / chunks
    return at_once
