"""Activations a pipeline rank holds at the fullest moment: layers, micro batches in flight, a token's bytes.

Source of the schedule: Megatron-Core schedules.py (`get_pp_rank_microbatches`), 1F1B and interleaved 1F1B.
Shapes: N rows, P pipeline ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.estimate.activations import Tensors, along, kept, named, routed, saved_by_tensor, select, total, wide_bytes
from trainer.estimate.candidates import Candidates, Floats
from trainer.estimate.memory_constants import constant
from trainer.estimate.transients import backward_of_a_layer, rebuilt


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes, each [N, P]."""

    eager: Floats  # kept for backward outside CUDA graphs
    graphed: Floats  # kept for backward inside them, and their static inputs and outputs
    routed: Floats  # of both, what grows with the load of the rank's experts
    workspace: Floats  # one layer's backward, with what recompute and offload bring back


def micro_batches_in_flight(candidates: Candidates) -> Floats:
    """[N, P]; a chunk of an interleaved rank counts as its share.

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


def activation_bytes(candidates: Candidates) -> Held:
    kinds = _layers_by_kind(candidates)
    layers = sum(kinds.values(), np.zeros(()))
    whole, inputs = _full_recompute(candidates, layers)
    share = whole / np.maximum(layers, 1.0) * _not_offloaded(candidates, layers)
    graphs = named(candidates, "graph")
    eager = graphed = grows = workspace = np.zeros(candidates.stages.exists.shape)
    hidden = candidates.base.architecture.hidden_size / along(candidates) * wide_bytes(candidates)
    for is_moe, count in kinds.items():
        saved = saved_by_tensor(candidates, is_moe=is_moe)
        left = kept(candidates, saved)
        captured = select(left, graphs)
        static = _static(candidates, captured, hidden)
        eager = eager + count * (total(left) - total(captured))[..., None]
        graphed = graphed + count * (total(captured) + static)[..., None]
        grows = grows + count * routed(left)[..., None]
        moment = backward_of_a_layer(candidates, saved, is_moe=is_moe) + rebuilt(candidates, saved, left)
        workspace = np.maximum(workspace, (count > 0) * moment[..., None])
    tokens = candidates.tokens[..., None]
    held = micro_batches_in_flight(candidates) * tokens
    split = np.where(candidates.on("distribute_saved_activations"), candidates.tp, 1.0)
    boundaries = inputs * (hidden / split)[..., None]
    return Held(
        eager=(share * eager + boundaries) * held,
        graphed=share * graphed * held,
        routed=share * grows * held,
        workspace=workspace * tokens,
    )


def _layers_by_kind(candidates: Candidates) -> dict[bool, Floats]:
    """{MoE or not: layers of each rank [N, P]}; MTP layers are of the model's last kind."""
    model, stages = candidates.base.architecture, candidates.stages
    kinds = {False: stages.dense} | ({True: stages.moe} if model.num_moe_experts else {})
    last = model.moe_layers[-1]
    return kinds | {last: kinds[last] + stages.mtp}


def _static(candidates: Candidates, captured: Tensors, hidden: Floats) -> Floats:
    """Inputs and outputs that a captured layer keeps, bytes a token."""
    return constant("graph_buffers") * hidden * (total(captured) > 0)


def _full_recompute(candidates: Candidates, layers: Floats) -> tuple[Floats, Floats]:
    """(layers whose activations are kept, layers whose input alone is kept) of one rank's, [N, P]."""
    full = candidates.among("recompute_granularity", "full")[..., None]
    block = candidates.among("recompute_method", "block")[..., None]
    count = np.minimum(candidates.number("recompute_num_layers", none=1.0)[..., None], layers)
    kept_whole = np.where(full, np.where(block, layers - count, 0.0), layers)
    inputs = np.where(block, count, layers / np.maximum(count, 1.0))
    return kept_whole, np.where(full, inputs, 0.0)


def _not_offloaded(candidates: Candidates, layers: Floats) -> Floats:
    """Share of the layers whose activations are not moved to the host whole."""
    moved = np.where(candidates.on("cpu_offloading"), candidates.number("cpu_offloading_num_layers"), 0.0)
    return np.maximum(0.0, 1 - moved[..., None] / np.maximum(layers, 1.0))
