"""Attention over all positions or over a window: multi-head, grouped-query, or with latent keys and values (MLA)."""

from __future__ import annotations

import numpy as np

from trainer.model.layer import LayerParameters, attention_channels, norm_parameters
from trainer.model.mixer import MASK_BYTES, Mixer, SavedSizes, TensorModules, Tensors
from trainer.recipe.architecture import Architecture

STATISTICS_BYTES = 4.0  # bytes of one log-sum-exp


def _parameters(model: Architecture) -> LayerParameters:
    hidden = model.hidden_size
    query, _, value = attention_channels(model)
    projected = value if model.multi_latent_attention else query
    inputs = _latent_inputs(model) if model.multi_latent_attention else _direct_inputs(model)
    sinks = model.num_attention_heads if model.softmax_type == "learnable" else 0
    bias = hidden if model.add_bias_linear else 0
    outputs = LayerParameters(split=projected * hidden + sinks, whole=bias + norm_parameters(model, hidden))
    return inputs + outputs


def _direct_inputs(model: Architecture) -> LayerParameters:
    """Returns the parameters of queries, keys, values, and the output gate, which is as wide as the queries."""
    query, key, value = attention_channels(model)
    width = query * (2 if model.attention_output_gate else 1) + key + value
    bias = width if model.add_bias_linear or model.add_qkv_bias else 0
    head = model.kv_channels or model.hidden_size // model.num_attention_heads
    norms = 2 * norm_parameters(model, head) if model.qk_layernorm else 0
    return LayerParameters(split=model.hidden_size * width + bias, whole=norms)


def _latent_inputs(model: Architecture) -> LayerParameters:
    """Returns the parameters of MLA's down- and up-projections; they never have a bias."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    query, key, value = attention_channels(model)
    q_rank, kv_rank, rope = model.q_lora_rank or 0, model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
    norms = norm_parameters(model, q_rank + kv_rank) if model.qk_layernorm else 0
    # rotary keys: one for all heads, projected directly
    up = (q_rank or hidden) * query + kv_rank * (key - heads * rope + value)
    down = hidden * (q_rank + kv_rank + rope)
    return LayerParameters(split=up, whole=down + norms, whole_linear=down)


def _flops(model: Architecture, seen: float) -> float:
    query, key, value = attention_channels(model)
    hidden, output = model.hidden_size, value if model.multi_latent_attention else query
    scores = seen * (query + output)
    if not model.multi_latent_attention:
        return hidden * (query * (2 if model.attention_output_gate else 1) + key + value) + query * hidden + scores
    q_rank, kv_rank, rope = model.q_lora_rank, model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
    queries = (hidden + query) * q_rank if q_rank else hidden * query
    latents = hidden * (kv_rank + rope) + kv_rank * (key - model.num_attention_heads * rope + value)
    return queries + latents + output * hidden + scores


def _saved(model: Architecture, sizes: SavedSizes) -> Tensors:
    tp = sizes.tp
    wide, narrow = sizes.wide_bytes, sizes.narrow_bytes
    hidden = model.hidden_size / sizes.sequence_parallel_ranks
    query, _, value = attention_channels(model)
    heads, output = model.num_attention_heads, value if model.multi_latent_attention else query
    scores = heads / tp * sizes.seq_length * sizes.keeps_scores
    dropped = (MASK_BYTES + wide) * (model.attention_dropout > 0)
    inputs = _latent_tensors(model, sizes) if model.multi_latent_attention else _direct_tensors(model, sizes)
    return inputs | {
        "residual": hidden * wide,
        "scores": scores * (wide + dropped),
        "attention_output": output * wide / tp + heads * STATISTICS_BYTES / tp,
        "attention_quantized": output * narrow / tp * sizes.delayed_scaling,
        "attention_dropout_mask": hidden * MASK_BYTES * (model.hidden_dropout > 0),
    }


def _direct_tensors(model: Architecture, sizes: SavedSizes) -> Tensors:
    """Returns the saved input (fused with the first norm) and outputs of the one projection of queries, keys and
    values."""
    query, key, value = attention_channels(model)
    wide = sizes.wide_bytes / sizes.tp
    return {
        "attention_norm": model.hidden_size / sizes.sequence_parallel_ranks * sizes.narrow_bytes,
        "queries_keys_values": (query + key + value) * wide,
        "unrotated": (query + key) * wide * model.qk_layernorm,
    }


def _latent_tensors(model: Architecture, sizes: SavedSizes) -> Tensors:
    """Returns MLA's saved tensors: latents, and up-projected ones; the latents' norms are fused with the
    up-projections."""
    query, key, value = attention_channels(model)
    wide, narrow = sizes.wide_bytes, sizes.narrow_bytes
    latent = ((model.q_lora_rank or 0) + (model.kv_lora_rank or 0)) / sizes.sequence_parallel_ranks
    copies = np.where(sizes.quantizes, 2.0, 1.0)
    return {
        "latent_norm": model.hidden_size / sizes.sequence_parallel_ranks * narrow * copies,
        "latents": latent * wide,
        "latents_normed": latent * narrow,
        "up_projected": (query + key + value) * wide / sizes.tp,
    }


MIXER = Mixer(
    name="attention",
    parameters=_parameters,
    flops=_flops,
    saved=_saved,
    modules={
        # output of MLA's first norm: input of both down-projections, each of which quantizes a copy
        "latent_norm": TensorModules(recompute="layernorm", offload="qkv_linear", graph="attn"),
        # MLA's compressed queries and keys-values
        "latents": TensorModules(graph="attn"),
        # outputs of the norms of the latents: inputs of the up-projections
        "latents_normed": TensorModules(recompute="mla_up_proj", graph="attn"),
        # inputs of attention
        "queries_keys_values": TensorModules(offload="core_attn", graph="attn"),
        # inputs of MLA's attention: queries and keys after the rotation, and values
        "up_projected": TensorModules(recompute="mla_up_proj", offload="core_attn", graph="attn"),
        # queries and keys before their own norms (QK layernorm)
        "unrotated": TensorModules(graph="attn"),
        # softmax of every pair of tokens and its dropout: kept by unfused attention only
        "scores": TensorModules(recompute="core_attn", offload="core_attn", graph="attn"),
        # output of attention and its log-sum-exp: input of the output projection
        "attention_output": TensorModules(offload="attn_proj", graph="attn"),
        # quantized copy of attention's output for the output projection: delayed scaling only
        "attention_quantized": TensorModules(graph="attn"),
        "attention_dropout_mask": TensorModules(graph="attn"),
    },
    attends=True,
)
