"""Model FLOPs of a step, as Megatron's throughput line counts them.

6 × (active parameters, output head included) a token, plus causal attention counted half: forward and backward,
never recompute. Source: the FLOP convention of arXiv 2603.07685 and Megatron-LM `num_floating_point_operations`;
its published figures come out within 0.02 %. Norms are counted with the weights (0.002 %).
"""

from __future__ import annotations

from trainer.estimate.parameters import LayerParameters, attention_channels, layer_parameters, mtp_parameters
from trainer.recipe.architecture import Architecture

FLOPS_PER_PARAMETER = 6.0  # multiply and add, in the forward pass and twice in the backward pass


def model_flops_per_token(model: Architecture, seq_length: int) -> float:
    """FLOPs to train on one token, MTP layers and their heads included."""
    mtp = model.mtp_num_layers or 0
    active = sum(_active(model, layer_parameters(model, is_moe=is_moe)) for is_moe in model.moe_layers)
    active += mtp * _active(model, mtp_parameters(model))
    active += (1 + mtp) * model.hidden_size * model.vocab_size
    attention = (model.num_layers + mtp) * _causal_attention(model, seq_length)
    return FLOPS_PER_PARAMETER * (active + attention)


def _active(model: Architecture, layer: LayerParameters) -> float:
    """Parameters that one token meets: of the routed experts, the top-k."""
    routed = model.moe_router_topk / model.num_moe_experts if model.num_moe_experts else 0.0
    return layer.split + layer.whole + layer.experts * routed


def _causal_attention(model: Architecture, seq_length: int) -> float:
    """Scores and weighted values of one layer, half of the square, as parameter-equivalents a token."""
    query, _, value = attention_channels(model)
    return seq_length / 2 * (query + (value if model.multi_latent_attention else query))
