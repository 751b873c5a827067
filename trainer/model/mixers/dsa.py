"""Sparse attention (DSA): latent attention over the positions that an indexer chooses, as in DeepSeek-V3.2 and GLM-5.

Source: experimental_attention_variant/dsa.py of Megatron-Core 0.16.1, which replicates the indexer on every TP rank.
Megatron's FLOPs counter (training.py of main d98e8a64) counts such a layer as latent attention over all positions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainer.model.layer import LayerParameters, windowed_mean
from trainer.model.mixer import SavedSizes, TensorModules, Tensors
from trainer.model.mixers.attention import MIXER as ATTENTION
from trainer.recipe.architecture import Architecture

INDEX_BYTES = 8.0  # bytes of one chosen position, an int64


def _index_width(model: Architecture) -> int:
    return (model.dsa_indexer_n_heads or 0) * (model.dsa_indexer_head_dim or 0)


def _parameters(model: Architecture) -> LayerParameters:
    """Returns the latent projections plus the indexer: queries from latent queries, one key, one weight per head, a
    LayerNorm."""
    head, heads = model.dsa_indexer_head_dim or 0, model.dsa_indexer_n_heads or 0
    queries = (model.q_lora_rank or model.hidden_size) * _index_width(model)
    linear = queries + model.hidden_size * (head + heads)
    return ATTENTION.parameters(model) + LayerParameters(whole=linear + 2 * head, whole_linear=linear)


def _positions(model: Architecture, seq_length: float) -> float:
    return windowed_mean(model.dsa_indexer_topk or seq_length, seq_length)


def _saved(model: Architecture, sizes: SavedSizes) -> Tensors:
    """Returns the tensors of latent attention; queries, key and weights of the indexer; the chosen positions."""
    read = _index_width(model) + (model.dsa_indexer_head_dim or 0) + (model.dsa_indexer_n_heads or 0)
    chosen = np.minimum(model.dsa_indexer_topk or np.inf, sizes.seq_length)
    return ATTENTION.saved(model, sizes) | {
        "index_read": read * sizes.wide_bytes + np.zeros_like(sizes.seq_length),
        "index_chosen": chosen * INDEX_BYTES,
    }


MIXER = replace(
    ATTENTION,
    name="dsa",
    parameters=_parameters,
    saved=_saved,
    positions=_positions,
    modules={
        "index_read": TensorModules(graph="attn"),  # queries, key and weights of the indexer
        "index_chosen": TensorModules(graph="attn"),  # positions that attention reads
    },
    not_priced="the indexer's scores and top-k of sparse attention, and gathers of what it chose",
)
