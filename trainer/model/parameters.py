"""The number of parameters of each part of a model: exactly those of Megatron-Core's modules, where it has them.

Tests compare them with the real `GPTModel` for random architectures and every preset it can build, in total and per
rank, and models with Mamba or gated delta net layers with their published totals. Sharding over TP is that of
Transformer Engine, whose linear layers replicate MLA's down-projections on every TP rank; Megatron-Core's local layers
split them. Source: attention.py, multi_latent_attention.py, moe/experts.py, moe/shared_experts.py, moe/router.py,
multi_token_prediction.py, ssm/gated_delta_net.py, ssm/mamba_mixer.py of Megatron-Core 0.16.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from trainer.model.layer import (
    LayerParameters,
    dense_width,
    each_field,
    expert_input,
    expert_width,
    mlp_matrices,
    norm_parameters,
)
from trainer.model.mixers import mixers
from trainer.recipe.architecture import Architecture, LayerKind


@lru_cache(maxsize=128)
def layer_parameters(model: Architecture, *, is_moe: bool) -> LayerParameters:
    """Returns one layer with or without experts, norms included.

    For a hybrid model it is the mean of such layers, so that mean times count is exact.
    """
    kinds = [kind for kind, moe in zip(model.layer_kinds, model.moe_layers, strict=True) if moe == is_moe]
    return _mean([kind_parameters(model, kind) for kind in kinds or [LayerKind("attention", "dense")]])


def kind_parameters(model: Architecture, kind: LayerKind) -> LayerParameters:
    """Returns one layer of a kind, exactly."""
    return mixers()[kind.mixer].parameters(model) + FEEDS[kind.feed](model) + _streams(model)


@lru_cache(maxsize=64)
def mtp_parameters(model: Architecture) -> LayerParameters:
    """Returns one multi-token-prediction layer: a decoder layer, the projection of two hidden states and three
    norms."""
    hidden = model.hidden_size
    own = LayerParameters(split=2 * hidden * hidden, whole=3 * norm_parameters(model, hidden))
    return kind_parameters(model, model.mtp_kind) + own


def vocabulary(model: Architecture, tp: Any) -> Any:
    """Returns the rows of the embedding, and of the output head, over all TP ranks, padded as Megatron-LM pads if
    `make_vocab_size_divisible_by` is set; `tp` is a number or an array."""
    if model.make_vocab_size_divisible_by is None:
        return model.vocab_size
    multiple = model.make_vocab_size_divisible_by * tp
    return np.ceil(model.vocab_size / multiple) * multiple


def table_parameters(model: Architecture, tp: Any) -> Any:
    """Returns the parameters of one embedding or output head on one TP rank."""
    return vocabulary(model, tp) * model.hidden_size / tp


def position_parameters(model: Architecture, seq_length: int) -> int:
    """Returns the learned position embeddings, replicated on every TP rank that embeds tokens."""
    return seq_length * model.hidden_size if model.position_embedding_type == "learned_absolute" else 0


def total_parameters(model: Architecture, *, mtp: bool = True, seq_length: int = 0) -> int:
    """Returns all parameters of the model, each counted once; `mtp` includes multi-token-prediction layers,
    `seq_length` is that of learned position embeddings."""
    layers = sum(kind_parameters(model, kind).total for kind in model.layer_kinds)
    tables = 1 + model.untie_embeddings_and_output_weights
    extra = model.most_mtp_layers * mtp_parameters(model).total if mtp else 0
    ends = tables * table_parameters(model, 1) + norm_parameters(model, model.hidden_size)
    # the mapping before the output head is about as large as that of one of a layer's two sublayers
    ends += _streams(model).whole / 2
    return int(layers + ends + extra + position_parameters(model, seq_length))


def _dense(model: Architecture) -> LayerParameters:
    hidden, count = model.hidden_size, mlp_matrices(model)
    width, bias = dense_width(model), int(model.add_bias_linear)
    return LayerParameters(
        split=count * hidden * width + bias * (count - 1) * width,
        whole=bias * hidden + norm_parameters(model, hidden),
    )


def _moe(model: Architecture) -> LayerParameters:
    """Returns the router, the routed experts, the latent projections around them, the shared expert, its gate and the
    norm."""
    hidden, count, experts = model.hidden_size, mlp_matrices(model), model.num_moe_experts or 0
    bias, width, seen = int(model.add_bias_linear), expert_width(model), expert_input(model)
    shared = model.moe_shared_expert_intermediate_size or 0
    latent = 2 * hidden * seen if model.moe_latent_size else 0
    latent_bias = bias * (hidden + seen) if model.moe_latent_size else 0
    gate = hidden if shared and model.moe_shared_expert_gate else 0
    return LayerParameters(
        split=count * hidden * shared,  # a shared expert has no bias
        experts=experts * (count * seen * width + bias * ((count - 1) * width + seen)),
        whole=experts * (hidden + bias) + latent + latent_bias + gate + norm_parameters(model, hidden),
        whole_linear=latent,
    )


def _streams(model: Architecture) -> LayerParameters:
    """Returns the mappings between residual streams, before and after both sublayers.

    Source: hyper_connection.py of Megatron-LM's dev branch.
    """
    streams = model.num_residual_streams if model.enable_hyper_connections else 0
    mixed = streams * (streams + 2)
    return LayerParameters(whole=2 * (mixed * streams * model.hidden_size + mixed + 3) if streams else 0)


def _nothing(_: Architecture) -> LayerParameters:
    return LayerParameters()


FEEDS: dict[str, Callable[[Architecture], LayerParameters]] = {"dense": _dense, "moe": _moe, "none": _nothing}


def _mean(layers: Sequence[LayerParameters]) -> LayerParameters:
    """Returns the mean layer; the layer itself if all are equal, which keeps whole numbers."""
    alike = all(layer == layers[0] for layer in layers)
    return layers[0] if alike else each_field(lambda values: sum(values) / len(values), layers)
