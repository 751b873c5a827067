"""Activations that a pipeline rank holds at its peak: layers times micro batches (`moments.py`) times bytes per token.

Shapes: N rows, P pipeline ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.estimate.candidates import Candidates, Floats
from trainer.estimate.memory.activations import (
    kept,
    named,
    routed,
    saved_by_tensor,
    select,
    sequence_parallel_ranks,
    total,
    wide_bytes,
)
from trainer.estimate.memory.constants import constant
from trainer.estimate.memory.moments import layers_held
from trainer.estimate.memory.transients import backward_of_a_layer, rebuilt
from trainer.model.mixer import Tensors


@dataclass(frozen=True, kw_only=True)
class ActivationBytes:
    """Activations by how they are held, bytes, each [N, P]."""

    eager: Floats  # kept for backward outside CUDA graphs
    graphed: Floats  # kept for backward inside CUDA graphs, and the static inputs and outputs of graphs
    routed: Floats  # part of eager and graphed that grows with the load of the rank's experts
    gone_at_loss: Floats  # part of `eager` that is free while the loss is computed
    workspace: Floats  # one layer's backward, with what recompute and offload bring back


def activation_bytes(candidates: Candidates) -> ActivationBytes:
    kinds = _layers_by_kind(candidates)
    layers = sum(kinds.values(), np.zeros(()))
    whole, inputs = _full_recompute(candidates, layers)
    share = whole / np.maximum(layers, 1.0) * _not_offloaded(candidates, layers)
    graphs = named(candidates, "graph")
    fullest, at_loss = layers_held(candidates)
    ahead = _ahead(candidates)
    eager = gone = graphed = grows = workspace = np.zeros(candidates.stages.exists.shape)
    hidden = candidates.base.architecture.hidden_size / sequence_parallel_ranks(candidates) * wide_bytes(candidates)
    for is_moe, count in kinds.items():
        saved = saved_by_tensor(candidates, is_moe=is_moe)
        left = kept(candidates, saved)
        captured = select(left, graphs)
        static = _static(captured, hidden)
        held, each = fullest[is_moe], (total(left) - total(captured))[..., None]
        eager, gone = eager + held * each, gone + (held - at_loss[is_moe]) * each
        graphed = graphed + (held + ahead * count) * (total(captured) + static)[..., None]
        grows = grows + held * routed(left)[..., None]
        moment = backward_of_a_layer(candidates, saved, is_moe=is_moe) + rebuilt(candidates, saved, left)
        workspace = np.maximum(workspace, (count > 0) * moment[..., None])
    tokens = candidates.tokens[..., None]
    batches = sum(fullest.values(), np.zeros(())) / np.maximum(layers, 1.0)
    split = np.where(candidates.on("distribute_saved_activations"), candidates.tp, 1.0)
    boundaries = inputs * (hidden / split)[..., None]
    return ActivationBytes(
        eager=(share * eager + boundaries * batches) * tokens,
        graphed=share * graphed * tokens,
        routed=share * grows * tokens,
        gone_at_loss=share * gone * tokens,
        workspace=workspace * tokens,
    )


def _layers_by_kind(candidates: Candidates) -> dict[bool, Floats]:
    """Returns {MoE or not: layers of each rank, [N, P]}; MTP layers are counted by their own feed-forward."""
    model, stages = candidates.base.architecture, candidates.stages
    kinds = {False: stages.dense} | ({True: stages.moe} if model.num_moe_experts else {})
    last = model.mtp_kind.feed == "moe"
    return kinds | {last: kinds[last] + stages.mtp}


def _ahead(candidates: Candidates) -> Floats:
    """Returns the number of micro batches for which captured layers have additional buffers, [N, 1].

    EP overlap without a pipeline runs the forward of one micro batch with the backward of another, and a graph keeps
    its buffers in between.
    """
    overlapped = candidates.on("overlap_moe_expert_parallel_comm") & (candidates.pp == 1) & (candidates.vpp == 1)
    result: Floats = np.where(overlapped & (candidates.microbatches > 1), 1.0, 0.0)[..., None]
    return result


def _static(captured: Tensors, hidden: Floats) -> Floats:
    """Returns the bytes per token of inputs and outputs that a captured layer keeps."""
    return constant("graph_buffers") * hidden * (total(captured) > 0)


def _full_recompute(candidates: Candidates, layers: Floats) -> tuple[Floats, Floats]:
    """Returns (layers whose activations are kept, checkpoints that keep one layer's input each) of a rank, [N, P]."""
    full = candidates.among("recompute_granularity", "full")[..., None]
    block = candidates.among("recompute_method", "block")[..., None]
    count = np.minimum(candidates.number("recompute_num_layers", none=1.0)[..., None], layers)
    kept_whole = np.where(full, np.where(block, layers - count, 0.0), layers)
    inputs = np.where(block, count, layers / np.maximum(count, 1.0))
    return kept_whole, np.where(full, inputs, 0.0)


def _not_offloaded(candidates: Candidates, layers: Floats) -> Floats:
    """Returns the share of layers whose activations are not offloaded as a whole."""
    moved = np.where(candidates.on("cpu_offloading"), candidates.number("cpu_offloading_num_layers"), 0.0)
    return np.maximum(0.0, 1 - moved[..., None] / np.maximum(layers, 1.0))
