"""The parameters that each pipeline rank holds, from which weights, gradients and optimizer state follow.

Shapes: N rows, P pipeline ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats
from trainer.model.layer import LayerParameters, norm_parameters
from trainer.model.parameters import layer_parameters, mtp_parameters, position_parameters, table_parameters


@dataclass(frozen=True, kw_only=True)
class HeldParameters:
    """The parameters of a rank, [N, P] each.

    `dense` are the same on all DP·CP ranks, `experts` on all expert-data-parallel ranks; `linear` counts those of both
    in linear layers between embedding and head, which FP8 and FP4 quantize, and `narrow_head` those of an output
    projection computed in MXFP8.
    """

    dense: Floats
    experts: Floats
    linear: Floats
    narrow_head: Floats


@lru_cache(maxsize=4)
def held_parameters(candidates: Candidates) -> HeldParameters:
    """Computes the parameters per rank: exact for models of attention layers; for hybrid models from their mean
    layer."""
    model, stages = candidates.base.architecture, candidates.stages
    tp, ep, etp = (size[..., None] for size in (candidates.tp, candidates.ep, candidates.etp))
    dense = experts = linear = np.zeros(stages.exists.shape)
    for name, layer in _layers(candidates).items():
        number = np.minimum(stages.mtp, model.most_mtp_layers) if name == "mtp" else getattr(stages, name)
        dense = dense + number * layer.dense_of_rank(tp)
        experts = experts + number * layer.experts_of_rank(ep, etp)
        linear = linear + number * (layer.split / tp + layer.whole_linear + layer.experts_of_rank(ep, etp))
    at_once = stages.exists & (candidates.pp == 1)[..., None]  # the only rank has both embedding and head
    tied = at_once & (not model.untie_embeddings_and_output_weights)
    copies = (stages.mtp > 0) & ~stages.embeds  # MTP embeds its tokens again
    tables = stages.embeds.astype(float) + (stages.heads & ~tied) + copies
    narrow_head = (stages.heads & ~tied & quantizes_head(candidates)[..., None]) * table_parameters(model, tp)
    positions = (stages.embeds | copies) * _positions(candidates)
    ends = tables * table_parameters(model, tp) + stages.norms * norm_parameters(model, model.hidden_size) + positions
    return HeldParameters(dense=dense + ends, experts=experts, linear=linear, narrow_head=narrow_head)


def quantizes_head(candidates: Candidates) -> Flags:
    """Returns [N]: true where the output projection is computed in MXFP8."""
    return candidates.on("fp8_output_proj") & candidates.among("precision", "mxfp8")


def _layers(candidates: Candidates) -> dict[str, LayerParameters]:
    """Returns one layer of each kind in the model, by the name of its count in `Stages`."""
    model = candidates.base.architecture
    kinds = {"dense": layer_parameters(model, is_moe=False)}
    if model.num_moe_experts:
        kinds["moe"] = layer_parameters(model, is_moe=True)
    if model.mtp_num_layers:
        kinds["mtp"] = mtp_parameters(model)
    return kinds


def _positions(candidates: Candidates) -> Floats:
    sequence = candidates.column("seq_length")
    return sequence.each(lambda length: float(position_parameters(candidates.base.architecture, length)))[..., None]
