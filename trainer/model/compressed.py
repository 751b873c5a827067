"""Parts of DeepSeek-V4's attention layers: the projections that all of them have, the compressors and the indexer.

Queries are compressed, one key of `v_head_dim` channels serves all heads and is the value too, and the output is
projected by groups of heads. Source: Megatron-LM's dev branch, experimental_attention_variant/csa.py and
deepseek_v4_hybrid_attention.py, with FLOPs as `_dsv4_hybrid_self_attention_flops` of its training.py counts them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainer.model.layer import LayerParameters, norm_parameters
from trainer.model.mixer import Mixer, SavedSizes, TensorModules, Tensors
from trainer.recipe.architecture import Architecture

STATISTICS_BYTES = 4.0  # bytes of one log-sum-exp


def _head(model: Architecture) -> int:
    return model.v_head_dim or 0


def _projections(model: Architecture) -> tuple[int, int]:
    """Returns the number of weights (split over TP, replicated on every TP rank) of the projections of queries, keys
    and output."""
    wide, rank = model.num_attention_heads * _head(model), model.o_lora_rank or 0
    q_rank, groups = model.q_lora_rank or 0, model.o_groups or 0
    split = q_rank * wide + wide * rank + groups * rank * model.hidden_size
    return split, model.hidden_size * (q_rank + _head(model))


def compressor(model: Architecture, head: int, ratio: int) -> tuple[int, int]:
    """Returns (weights, all parameters) of a compressor of `ratio` positions into one key of `head` channels: values
    and gates (over two windows if they overlap), one bias per position, a norm."""
    out = head * (2 if ratio == OVERLAPPING else 1)
    weights = 2 * model.hidden_size * out
    return weights, weights + ratio * out + head


OVERLAPPING = 4  # the ratio whose windows overlap, which has an indexer too


def indexer(model: Architecture) -> tuple[int, int]:
    """Returns (weights, all parameters) of the indexer over compressed keys: queries, one weight per head, its own
    keys."""
    head, heads = model.dsa_indexer_head_dim or 0, model.dsa_indexer_n_heads or 0
    own = (model.q_lora_rank or 0) * heads * head + model.hidden_size * heads
    weights, parameters = compressor(model, head, OVERLAPPING)
    return own + weights, own + parameters


def _extra(model: Architecture, ratio: int) -> tuple[int, int]:
    """Returns (weights, all parameters) of compressor and indexer, replicated on every TP rank."""
    if not ratio:
        return 0, 0
    weights, parameters = compressor(model, _head(model), ratio)
    if ratio != OVERLAPPING:
        return weights, parameters
    of_index, index_parameters = indexer(model)
    return weights + of_index, parameters + index_parameters


def _parameters(model: Architecture, ratio: int) -> LayerParameters:
    split, whole = _projections(model)
    norms = norm_parameters(model, model.hidden_size + (model.q_lora_rank or 0) + _head(model))
    sinks = model.num_attention_heads
    return LayerParameters(split=split + sinks, whole=whole + norms + _extra(model, ratio)[1])


def _chosen(model: Architecture, seq_length: float, ratio: int) -> float:
    """Returns the number of compressed keys that a query attends to, on average over a causal sequence."""
    if not ratio:
        return 0.0
    if ratio != OVERLAPPING:
        return seq_length / (2 * ratio)
    topk = min(float(model.dsa_indexer_topk or 0), seq_length // ratio)
    return topk * (1 - topk * ratio / (2 * seq_length))


def _positions(model: Architecture, seq_length: float, ratio: int) -> float:
    return min(float(model.csa_window_size), seq_length / 2) + _chosen(model, seq_length, ratio)


def _flops(model: Architecture, seen: float, ratio: int) -> float:
    """Returns FLOPs per token as weights. The indexer's scores are counted over the keys of the whole sequence, one key
    per OVERLAPPING positions."""
    seq_length, heads, head = 2 * seen, model.num_attention_heads, _head(model)
    scores = heads * head * 2 * (model.csa_window_size + _chosen(model, seq_length, ratio))
    index = (model.dsa_indexer_n_heads or 0) * (model.dsa_indexer_head_dim or 0) * seq_length / OVERLAPPING
    return sum(_projections(model)) + _extra(model, ratio)[0] + scores + (index if ratio == OVERLAPPING else 0.0)


def _saved(model: Architecture, sizes: SavedSizes, ratio: int, prefix: str) -> Tensors:
    """Returns latent queries and their norm's output, queries, the key, inputs of compressors and indexer, attention's
    output and statistics, and the grouped output."""
    wide, heads, head = sizes.wide_bytes, model.num_attention_heads, _head(model)
    q_rank, grouped = model.q_lora_rank or 0, (model.o_groups or 0) * (model.o_lora_rank or 0)
    compressed = 2 * head * (2 if ratio == OVERLAPPING else 1) if ratio else 0
    index_head = model.dsa_indexer_head_dim or 0
    index = (model.dsa_indexer_n_heads or 0) * (index_head + 1) + 4 * index_head if ratio == OVERLAPPING else 0
    queries = heads * head / sizes.tp
    return {
        f"{prefix}_latents": (2 * q_rank + 2 * head) * wide,
        f"{prefix}_queries": queries * wide,
        f"{prefix}_compressed": (compressed + index) * wide + np.zeros_like(sizes.seq_length),
        f"{prefix}_output": (queries + grouped / sizes.tp) * wide + heads * STATISTICS_BYTES / sizes.tp,
        "residual": model.hidden_size / sizes.sequence_parallel_ranks * wide,
        "attention_norm": model.hidden_size / sizes.sequence_parallel_ranks * sizes.narrow_bytes,
    }


def compressed_attention(name: str, ratio: int, not_priced: str) -> Mixer:
    """Returns the mixer of layers that compress `ratio` positions into one key; 0: attention over a window only."""

    def of_ratio(function: Callable[[Architecture, float, int], float]) -> Callable[[Architecture, float], float]:
        return lambda model, length: function(model, length, ratio)

    return Mixer(
        name=name,
        parameters=lambda model: _parameters(model, ratio),
        flops=of_ratio(_flops),
        saved=lambda model, sizes: _saved(model, sizes, ratio, name),
        modules={
            f"{name}_latents": TensorModules(graph="attn"),  # compressed queries and the key, before and after norms
            f"{name}_queries": TensorModules(offload="core_attn", graph="attn"),
            f"{name}_compressed": TensorModules(graph="attn"),  # inputs of compressor and indexer
            f"{name}_output": TensorModules(offload="attn_proj", graph="attn"),
        },
        attends=True,
        positions=of_ratio(_positions),
        not_priced=not_priced,
    )
