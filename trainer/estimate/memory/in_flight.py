"""Activations a pipeline rank holds at the fullest moment: layers, micro batches in flight, a token's bytes.

Source of the schedule: Megatron-Core schedules.py (`get_pp_rank_microbatches`), 1F1B and interleaved 1F1B.
Shapes: N rows, P pipeline ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from trainer.estimate.candidates import Candidates, Floats
from trainer.estimate.memory.activations import (
    Tensors,
    along,
    kept,
    named,
    routed,
    saved_by_tensor,
    select,
    total,
    wide_bytes,
)
from trainer.estimate.memory.constants import constant
from trainer.estimate.memory.transients import backward_of_a_layer, rebuilt


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes, each [N, P]."""

    eager: Floats  # kept for backward outside CUDA graphs
    graphed: Floats  # kept for backward inside them, and their static inputs and outputs
    routed: Floats  # of both, what grows with the load of the rank's experts
    workspace: Floats  # one layer's backward, with what recompute and offload bring back


@dataclass(frozen=True, kw_only=True)
class Forwards:
    """Micro batches whose activations a rank holds of its first chunk, its last, and all chunks between, [N, P]."""

    first: Floats
    between: Floats
    last: Floats

    @property
    def all(self) -> Floats:
        return self.first + self.between + self.last


def forwards_held(candidates: Candidates) -> tuple[Forwards, ...]:
    """At the moments that can be fullest: after the warm-up and one more forward; with interleaving also when the
    group of micro batches under way then is through its chunk, the last chunk having worked backward meanwhile."""
    ranks = np.arange(candidates.stages.exists.shape[1], dtype=float)
    behind = np.maximum(0.0, candidates.pp[..., None] - ranks - 1)  # stages after this one
    chunks, batches = candidates.vpp[..., None], candidates.microbatches[..., None]
    group = candidates.number("microbatch_group_size_per_vp_stage")
    group = np.where(group > 0, group, candidates.pp)[..., None]
    overlapped = candidates.on("overlap_moe_expert_parallel_comm")[..., None]
    if not (chunks > 1).any():
        held = np.minimum(behind + 1, batches)
        return (Forwards(first=held, between=np.zeros(()), last=np.zeros(())),)
    interleaved = 2 * behind + (chunks - 1) * group + 1 + overlapped
    done = np.minimum(np.where(chunks > 1, interleaved, behind + 1), batches * chunks)
    until_through = np.minimum(np.mod(-done, group), batches * chunks - done) * (chunks > 1)
    return _held(done, 0.0 * done, group, chunks), _held(done + until_through, until_through, group, chunks)


def _held(forwards: Floats, backwards: Floats, group: Floats, chunks: Floats) -> Forwards:
    """Chunks take turns, a group of micro batches each; the first backwards are the last chunk's."""
    rounds = np.floor(forwards / (group * chunks))
    rest = forwards - rounds * group * chunks
    first = rounds * group + np.minimum(rest, group)
    last = rounds * group + np.clip(rest - (chunks - 1) * group, 0.0, group) - backwards
    several = chunks > 1
    first, last = np.where(several, first, forwards), np.where(several, np.maximum(last, 0.0), 0.0)
    return Forwards(first=first, between=np.maximum(0.0, forwards - backwards - first - last), last=last)


def layers_in_flight(candidates: Candidates, held: Forwards) -> dict[bool, Floats]:
    """{MoE or not: layers times micro batches held, [N, P]}; MTP layers are of the model's last kind."""
    model, stages = candidates.base.architecture, candidates.stages
    chunks = candidates.vpp[..., None]
    ends = {False: (stages.dense, stages.dense_first, stages.dense_last)}
    if model.num_moe_experts:
        ends[True] = (stages.moe, stages.moe_first, stages.moe_last)
    found = {}
    for is_moe, (whole, first, last) in ends.items():
        each = np.maximum(0.0, whole - first - last) / np.maximum(chunks - 2, 1.0)
        found[is_moe] = held.first * first + held.between * each + held.last * last * (chunks > 1)
    kind = model.moe_layers[-1]
    found[kind] = found[kind] + stages.mtp * np.where(chunks > 1, held.last, held.first)
    return found


def activation_bytes(candidates: Candidates) -> Held:
    kinds = _layers_by_kind(candidates)
    layers = sum(kinds.values(), np.zeros(()))
    whole, inputs = _full_recompute(candidates, layers)
    share = whole / np.maximum(layers, 1.0) * _not_offloaded(candidates, layers)
    graphs = named(candidates, "graph")
    fullest = forwards_held(candidates)
    moments = [layers_in_flight(candidates, held) for held in fullest]
    ahead = _ahead(candidates)
    eager = graphed = grows = workspace = np.zeros(candidates.stages.exists.shape)
    hidden = candidates.base.architecture.hidden_size / along(candidates) * wide_bytes(candidates)
    for is_moe, count in kinds.items():
        saved = saved_by_tensor(candidates, is_moe=is_moe)
        left = kept(candidates, saved)
        captured = select(left, graphs)
        static = _static(candidates, captured, hidden)
        held = reduce(np.maximum, (moment[is_moe] for moment in moments))
        eager = eager + held * (total(left) - total(captured))[..., None]
        graphed = graphed + (held + ahead * count) * (total(captured) + static)[..., None]
        grows = grows + held * routed(left)[..., None]
        moment = backward_of_a_layer(candidates, saved, is_moe=is_moe) + rebuilt(candidates, saved, left)
        workspace = np.maximum(workspace, (count > 0) * moment[..., None])
    tokens = candidates.tokens[..., None]
    batches = fullest[0].all / candidates.vpp[..., None]
    split = np.where(candidates.on("distribute_saved_activations"), candidates.tp, 1.0)
    boundaries = inputs * (hidden / split)[..., None]
    return Held(
        eager=(share * eager + boundaries * batches) * tokens,
        graphed=share * graphed * tokens,
        routed=share * grows * tokens,
        workspace=workspace * tokens,
    )


def _layers_by_kind(candidates: Candidates) -> dict[bool, Floats]:
    """{MoE or not: layers of each rank [N, P]}; MTP layers are of the model's last kind."""
    model, stages = candidates.base.architecture, candidates.stages
    kinds = {False: stages.dense} | ({True: stages.moe} if model.num_moe_experts else {})
    last = model.moe_layers[-1]
    return kinds | {last: kinds[last] + stages.mtp}


def _ahead(candidates: Candidates) -> Floats:
    """Micro batches more that captured layers have buffers for, [N, 1]: EP overlap without a pipeline runs one forward
    beside another backward, and a graph's buffers are not given back in between."""
    overlapped = candidates.on("overlap_moe_expert_parallel_comm") & (candidates.pp == 1) & (candidates.vpp == 1)
    result: Floats = np.where(overlapped & (candidates.microbatches > 1), 1.0, 0.0)[..., None]
    return result


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
