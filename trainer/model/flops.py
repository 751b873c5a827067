"""Model FLOPs of a step, as Megatron's throughput line counts them.

Six a weight of every GEMM a token meets (multiply and add, in the forward pass and twice in the backward
pass), plus attention over the positions it sees: half the sequence on average, or its window. No norms, no router,
no recompute. Source: Megatron-LM `num_floating_point_operations`; held against the ratios of published TFLOPS to
tokens/s. arXiv 2603.07685 counts the router too (DeepSeek-V3: +0.25 %).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from trainer.model.parameters import attention_channels, dense_width, expert_width, matrices
from trainer.recipe.architecture import Architecture, LayerKind

FLOPS_PER_WEIGHT = 6.0
SCAN_PASSES = 3.5  # of Mamba's state, as weights a token: 7 operations each in the published count
DELTA_PASSES = 4.0  # of gated delta net's state: decay, read, write, query


@dataclass(frozen=True, kw_only=True)
class LayerFlops:
    """To train on one token: each decoder layer, one MTP layer, the output head."""

    layers: tuple[float, ...]
    mtp: float
    head: float


@cache
def layer_flops(model: Architecture, seq_length: int) -> LayerFlops:
    kinds = list(zip(model.layer_kinds, model.windowed_layers, strict=True))
    each = {
        (kind, windowed): FLOPS_PER_WEIGHT * _layer(model, kind, _seen(model, seq_length, windowed=windowed))
        for kind, windowed in set(kinds)
    }
    last = _layer(model, kinds[-1][0], _seen(model, seq_length, windowed=False))
    return LayerFlops(
        layers=tuple(each[kind] for kind in kinds),
        mtp=FLOPS_PER_WEIGHT * (last + 2 * model.hidden_size**2),
        head=FLOPS_PER_WEIGHT * model.hidden_size * model.vocab_size,
    )


def _layer(model: Architecture, kind: LayerKind, seen: float) -> float:
    """Weights, and scores as weights, that one token meets."""
    return MIXERS[kind.mixer](model, seen) + FEEDS[kind.feed](model)


def model_flops_per_token(model: Architecture, seq_length: int) -> float:
    """FLOPs to train on one token, MTP layers and their heads included."""
    flops, mtp = layer_flops(model, seq_length), model.mtp_num_layers or 0
    return sum(flops.layers) + mtp * flops.mtp + (1 + mtp) * flops.head


def attended(model: Architecture, seq_length: int) -> tuple[float, ...]:
    """Positions a token attends to in each layer: fewer where a layer sees a window, none where it has no attention."""
    layers = zip(model.layer_kinds, model.windowed_layers, strict=True)
    return tuple(
        _seen(model, seq_length, windowed=windowed) if kind.mixer == "attention" else 0.0 for kind, windowed in layers
    )


def mean_attended(model: Architecture, seq_length: int) -> float:
    """The same on average over all layers."""
    return sum(attended(model, seq_length)) / model.num_layers


def _seen(model: Architecture, seq_length: int, *, windowed: bool) -> float:
    """Positions a token attends to, on average over a causal sequence."""
    if not windowed or model.window_size is None or not 0 < model.window_size[0] < seq_length:
        return seq_length / 2
    window = model.window_size[0]
    return window - window * window / (2 * seq_length)


def _attention(model: Architecture, seen: float) -> float:
    query, key, value = attention_channels(model)
    hidden, output = model.hidden_size, value if model.multi_latent_attention else query
    scores = seen * (query + output)
    if not model.multi_latent_attention:
        return hidden * (query * (2 if model.attention_output_gate else 1) + key + value) + query * hidden + scores
    q_rank, kv_rank, rope = model.q_lora_rank, model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
    queries = (hidden + query) * q_rank if q_rank else hidden * query
    latents = hidden * (kv_rank + rope) + kv_rank * (key - model.num_attention_heads * rope + value)
    return queries + latents + output * hidden + scores


def _gated_delta_net(model: Architecture, _: float) -> float:
    heads = model.linear_num_value_heads
    keys = 2 * model.linear_num_key_heads * model.linear_key_head_dim
    values = heads * model.linear_value_head_dim
    convolution = (keys + values) * model.linear_conv_kernel_dim
    state = DELTA_PASSES * values * model.linear_key_head_dim
    return model.hidden_size * (keys + 3 * values + 2 * heads) + convolution + state


def _mamba(model: Architecture, _: float) -> float:
    """Published counts take the inner width as twice the hidden one, whatever the heads make it."""
    hidden, inner = model.hidden_size, 2 * model.hidden_size
    heads = model.mamba_num_heads or inner // model.mamba_head_dim
    states = 2 * model.mamba_num_groups * model.mamba_state_dim
    return hidden * (3 * inner + states + heads) + SCAN_PASSES * inner * model.mamba_state_dim


def _dense(model: Architecture) -> float:
    return matrices(model) * model.hidden_size * dense_width(model)


def _moe(model: Architecture) -> float:
    hidden, seen = model.hidden_size, model.moe_latent_size or model.hidden_size
    routed = model.moe_router_topk * seen * expert_width(model)
    shared = hidden * (model.moe_shared_expert_intermediate_size or 0)
    latent = 2 * hidden * seen if model.moe_latent_size else 0
    return matrices(model) * (routed + shared) + latent


MIXERS: dict[str, Callable[[Architecture, float], float]] = {
    "attention": _attention,
    "gated_delta_net": _gated_delta_net,
    "mamba": _mamba,
    "none": lambda _model, _seen: 0.0,
}
FEEDS: dict[str, Callable[[Architecture], float]] = {"dense": _dense, "moe": _moe, "none": lambda _: 0.0}
