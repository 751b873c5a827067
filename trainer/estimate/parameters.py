"""How many parameters each part of a model has, by closed form.

Agrees with the totals of `models.csv` within 1 % (biases, router bias and gates are left out). Source: the shapes of
Megatron-Core's modules (attention.py, multi_latent_attention.py, moe/experts.py, moe/shared_experts.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.recipe.architecture import Architecture


@dataclass(frozen=True, kw_only=True)
class LayerParameters:
    """Parameters of one layer by how ranks share them: `split` over TP, `experts` over EP and ETP, `whole` on every
    TP rank (norms, router, compressions of MLA)."""

    split: int
    experts: int
    whole: int

    @property
    def total(self) -> int:
        return self.split + self.experts + self.whole


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
    """One transformer layer: attention, its norms, and a dense or expert feed-forward."""
    hidden, matrices = model.hidden_size, 3 if model.gated_linear_unit else 2
    attention_split, attention_whole = _attention(model)
    whole = attention_whole + 2 * hidden
    if not is_moe:
        split = attention_split + matrices * hidden * dense_width(model)
        return LayerParameters(split=split, experts=0, whole=whole)
    experts = model.num_moe_experts or 0
    shared = matrices * hidden * (model.moe_shared_expert_intermediate_size or 0)
    return LayerParameters(
        split=attention_split + shared,
        experts=experts * matrices * hidden * expert_width(model),
        whole=whole + hidden * experts,
    )


def mtp_parameters(model: Architecture) -> LayerParameters:
    """One multi-token-prediction layer: a layer of the last kind, the projection of two hiddens and three norms."""
    layer = layer_parameters(model, is_moe=model.moe_layers[-1])
    hidden = model.hidden_size
    return LayerParameters(
        split=layer.split + 2 * hidden * hidden, experts=layer.experts, whole=layer.whole + 3 * hidden
    )


def total_parameters(model: Architecture, *, mtp: bool = True) -> int:
    """All parameters; `mtp` counts the multi-token-prediction layers where the model has them."""
    layers = sum(layer_parameters(model, is_moe=is_moe).total for is_moe in model.moe_layers)
    embeddings = (2 if model.untie_embeddings_and_output_weights else 1) * model.vocab_size * model.hidden_size
    extra = (model.mtp_num_layers or 0) * mtp_parameters(model).total if mtp else 0
    return layers + embeddings + extra + model.hidden_size


def _attention(model: Architecture) -> tuple[int, int]:
    """(split over TP, whole on every TP rank)."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    query, key, value = attention_channels(model)
    if not model.multi_latent_attention:
        norms = 2 * (model.kv_channels or hidden // heads) if model.qk_layernorm else 0
        return hidden * (query + key + value) + query * hidden, norms
    q_rank, kv_rank, rope = model.q_lora_rank, model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
    q_down = hidden * q_rank + q_rank if q_rank else 0
    kv_down = hidden * (kv_rank + rope) + kv_rank
    q_up = (q_rank or hidden) * query
    kv_up = kv_rank * (key - heads * rope + value)  # rotary keys are one for all heads, and not compressed
    return q_up + kv_up + value * hidden, q_down + kv_down
