"""How many parameters each part of a model has: exactly those of Megatron-Core's modules.

Held against the real `GPTModel` for random architectures and every preset it can build, in total and by rank; models
with Mamba or gated delta net layers against their published totals. As Transformer Engine shares them: its linear
layers keep MLA's down-projections whole on every TP rank, where the local ones split them. Source: attention.py,
multi_latent_attention.py, moe/experts.py, moe/shared_experts.py, moe/router.py, multi_token_prediction.py,
ssm/gated_delta_net.py, ssm/mamba_mixer.py of Megatron-Core 0.16.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from trainer.recipe.architecture import Architecture, LayerKind

MAMBA_EXPANSION = 2  # inner over hidden width where the heads are not given (mamba_mixer.py: expand)
MAMBA_CONVOLUTION = 4  # width of its causal convolution (mamba_mixer.py: d_conv)


@dataclass(frozen=True, kw_only=True)
class LayerParameters:
    """Parameters of one layer by how ranks share them. Whole numbers, but for the mean layer of a hybrid model.

    `split` over TP; `whole` on every TP rank (norms, router, MLA's compressions); `experts` over EP and ETP (experts
    with biases are only legal with ETP 1, which would not split all of them).
    """

    split: float = 0
    experts: float = 0
    whole: float = 0

    @property
    def total(self) -> float:
        return self.split + self.experts + self.whole

    def __add__(self, other: LayerParameters) -> LayerParameters:
        return _each(sum, [self, other])

    def dense_of_rank(self, tp: Any) -> Any:
        """Parameters outside the experts that a rank holds; `tp` is a number or an array of any shape."""
        return self.split / tp + self.whole

    def experts_of_rank(self, ep: Any, etp: Any) -> Any:
        """Expert parameters that a rank holds; `ep` and `etp` are numbers or arrays of one shape."""
        return self.experts / (ep * etp)


def attention_channels(model: Architecture) -> tuple[int, int, int]:
    """Width of queries, keys and values over all heads, as they enter attention."""
    heads = model.num_attention_heads
    if model.multi_latent_attention:
        qk = (model.qk_head_dim or 0) + (model.qk_pos_emb_head_dim or 0)
        return heads * qk, heads * qk, heads * (model.v_head_dim or 0)
    each = model.kv_channels or model.hidden_size // heads
    groups = model.num_query_groups or heads
    return heads * each, groups * each, groups * each


def dense_width(model: Architecture) -> int:
    return model.ffn_hidden_size or 4 * model.hidden_size


def expert_width(model: Architecture) -> int:
    return model.moe_ffn_hidden_size or dense_width(model)


def layer_parameters(model: Architecture, *, is_moe: bool) -> LayerParameters:
    """One layer, norms included: with experts or without. Of a hybrid model the mean of its layers of that kind,
    so that the mean times their number is exact."""
    kinds = [kind for kind, moe in zip(model.layer_kinds, model.moe_layers, strict=True) if moe == is_moe]
    return _mean([kind_parameters(model, kind) for kind in kinds or [LayerKind("attention", "dense")]])


def kind_parameters(model: Architecture, kind: LayerKind) -> LayerParameters:
    """One layer of a kind, exactly."""
    return MIXERS[kind.mixer](model) + FEEDS[kind.feed](model)


def mtp_parameters(model: Architecture) -> LayerParameters:
    """One multi-token-prediction layer: a layer of the last kind, the projection of two hiddens and three norms."""
    hidden = model.hidden_size
    own = LayerParameters(split=2 * hidden * hidden, whole=3 * norm_parameters(model, hidden))
    return kind_parameters(model, model.layer_kinds[-1]) + own


def norm_parameters(model: Architecture, width: int) -> int:
    """Weights, and biases where the norm has them."""
    return width * (2 if model.normalization == "LayerNorm" else 1)


def vocabulary(model: Architecture, tp: Any) -> Any:
    """Rows of the embedding and of the output head over all TP ranks, padded as Megatron-LM pads where
    `make_vocab_size_divisible_by` is set; `tp` is a number or an array."""
    if model.make_vocab_size_divisible_by is None:
        return model.vocab_size
    multiple = model.make_vocab_size_divisible_by * tp
    return np.ceil(model.vocab_size / multiple) * multiple


def table_parameters(model: Architecture, tp: Any) -> Any:
    """What a rank holds of one embedding or output head."""
    return vocabulary(model, tp) * model.hidden_size / tp


def position_parameters(model: Architecture, seq_length: int) -> int:
    """Learned positions, whole on every TP rank that embeds tokens."""
    return seq_length * model.hidden_size if model.position_embedding_type == "learned_absolute" else 0


def total_parameters(model: Architecture, *, mtp: bool = True, seq_length: int = 0) -> int:
    """All parameters of the model, each once; `mtp` counts the multi-token-prediction layers where it has them."""
    layers = sum(kind_parameters(model, kind).total for kind in model.layer_kinds)
    tables = 1 + model.untie_embeddings_and_output_weights
    extra = (model.mtp_num_layers or 0) * mtp_parameters(model).total if mtp else 0
    ends = tables * table_parameters(model, 1) + norm_parameters(model, model.hidden_size)
    return int(layers + ends + extra + position_parameters(model, seq_length))


def matrices(model: Architecture) -> int:
    """Of a feed-forward, seen from the hidden side: gate, up and down, or up and down."""
    return 3 if model.gated_linear_unit else 2


def _attention(model: Architecture) -> LayerParameters:
    hidden = model.hidden_size
    query, _, value = attention_channels(model)
    projected = value if model.multi_latent_attention else query
    inputs = _latent_inputs(model) if model.multi_latent_attention else _direct_inputs(model)
    sinks = model.num_attention_heads if model.softmax_type == "learnable" else 0
    bias = hidden if model.add_bias_linear else 0
    outputs = LayerParameters(split=projected * hidden + sinks, whole=bias + norm_parameters(model, hidden))
    return inputs + outputs


def _direct_inputs(model: Architecture) -> LayerParameters:
    """Queries, keys, values, and the gate of the output, as wide as the queries."""
    query, key, value = attention_channels(model)
    width = query * (2 if model.attention_output_gate else 1) + key + value
    bias = width if model.add_bias_linear or model.add_qkv_bias else 0
    head = model.kv_channels or model.hidden_size // model.num_attention_heads
    norms = 2 * norm_parameters(model, head) if model.qk_layernorm else 0
    return LayerParameters(split=model.hidden_size * width + bias, whole=norms)


def _latent_inputs(model: Architecture) -> LayerParameters:
    """Down- and up-projections of MLA; they never have a bias."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    query, key, value = attention_channels(model)
    q_rank, kv_rank, rope = model.q_lora_rank or 0, model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
    norms = norm_parameters(model, q_rank + kv_rank) if model.qk_layernorm else 0
    up = (q_rank or hidden) * query + kv_rank * (key - heads * rope + value)  # rotary keys: one for all heads, direct
    return LayerParameters(split=up, whole=hidden * (q_rank + kv_rank + rope) + norms)


def _gated_delta_net(model: Architecture) -> LayerParameters:
    hidden, heads = model.hidden_size, model.linear_num_value_heads
    keys = 2 * model.linear_num_key_heads * model.linear_key_head_dim  # and queries, as wide
    values = heads * model.linear_value_head_dim
    projections = hidden * (keys + 2 * values + 2 * heads) + values * hidden  # values and their gate; beta and alpha
    convolution = (keys + values) * model.linear_conv_kernel_dim
    norms = norm_parameters(model, model.linear_value_head_dim) + norm_parameters(model, hidden)
    return LayerParameters(split=projections + convolution + 2 * heads, whole=norms)  # dt_bias and A_log by head


def _mamba(model: Architecture) -> LayerParameters:
    hidden = model.hidden_size
    heads = model.mamba_num_heads or MAMBA_EXPANSION * hidden // model.mamba_head_dim
    inner = heads * model.mamba_head_dim
    states = 2 * model.mamba_num_groups * model.mamba_state_dim  # B and C
    projections = hidden * (2 * inner + states + heads) + inner * hidden
    convolution = (inner + states) * (MAMBA_CONVOLUTION + 1)  # with bias
    own = 3 * heads + inner  # dt_bias, A_log, D by head; the gated norm
    return LayerParameters(split=projections + convolution + own, whole=norm_parameters(model, hidden))


def _dense(model: Architecture) -> LayerParameters:
    hidden, count = model.hidden_size, matrices(model)
    width, bias = dense_width(model), int(model.add_bias_linear)
    return LayerParameters(
        split=count * hidden * width + bias * (count - 1) * width,
        whole=bias * hidden + norm_parameters(model, hidden),
    )


def _moe(model: Architecture) -> LayerParameters:
    """Router, routed and shared experts, and the latent projections around the routed ones."""
    hidden, count, experts = model.hidden_size, matrices(model), model.num_moe_experts or 0
    bias, width, seen = int(model.add_bias_linear), expert_width(model), model.moe_latent_size or hidden
    shared = model.moe_shared_expert_intermediate_size or 0
    latent = 2 * hidden * seen + bias * (hidden + seen) if model.moe_latent_size else 0
    gate = hidden if shared and model.moe_shared_expert_gate else 0
    return LayerParameters(
        split=count * hidden * shared,  # a shared expert has no bias
        experts=experts * (count * seen * width + bias * ((count - 1) * width + seen)),
        whole=experts * (hidden + bias) + latent + gate + norm_parameters(model, hidden),
    )


def _nothing(_: Architecture) -> LayerParameters:
    return LayerParameters()


MIXERS: dict[str, Callable[[Architecture], LayerParameters]] = {
    "attention": _attention,
    "gated_delta_net": _gated_delta_net,
    "mamba": _mamba,
    "none": _nothing,
}
FEEDS: dict[str, Callable[[Architecture], LayerParameters]] = {"dense": _dense, "moe": _moe, "none": _nothing}


def _each(combine: Callable[[list[float]], float], layers: Sequence[LayerParameters]) -> LayerParameters:
    """`combine` of every field over the layers."""
    return LayerParameters(
        **{field.name: combine([getattr(layer, field.name) for layer in layers]) for field in fields(LayerParameters)}
    )


def _mean(layers: Sequence[LayerParameters]) -> LayerParameters:
    """The layer itself where all are alike."""
    alike = all(layer == layers[0] for layer in layers)
    return layers[0] if alike else _each(lambda values: sum(values) / len(values), layers)
