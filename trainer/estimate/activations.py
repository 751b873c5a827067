"""Bytes of activations that one layer keeps for backward, for one token, by closed form.

Counted as the tensors Megatron-Core saves with fused attention (no scores kept) and the memory-efficient permutation
(router probabilities applied inside the activation, so that expert outputs are not kept). For DeepSeek-V3 at 4K this
gives 1.73 GiB a layer and micro batch, and 2.17 with expert outputs; 131 GiB over 60 of them were published
(arXiv 2603.07685, table 3), which is 2.18.
"""

from __future__ import annotations

from trainer.estimate.parameters import attention_channels, dense_width, expert_width
from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import fp4, fp8
from trainer.recipe.schema import Recipe

# What recompute of a module does not keep (source: Megatron-Core transformer_config.py, recompute_modules). Fused
# attention keeps its output, which the projection needs anyway: recomputing it saves next to nothing.
RECOMPUTED: dict[str, tuple[str, ...]] = {
    "core_attn": (),
    "mla_up_proj": ("queries_keys_values",),
    "layernorm": ("attention_norm", "mlp_norm"),
    "moe_act": ("expert_activation",),
    "mlp": ("dense_hidden", "dense_activation"),
    "shared_experts": ("shared_hidden", "shared_activation"),
    "moe": (
        "shared_hidden",
        "shared_activation",
        "expert_input",
        "expert_hidden",
        "expert_activation",
        "router",
    ),
}
# Fine-grained offload moves these to the host (source: Megatron-Core transformer_config.py, offload_modules).
OFFLOADED: dict[str, tuple[str, ...]] = {
    "core_attn": ("queries_keys_values",),
    "attn_proj": ("attention_output",),
    "qkv_linear": ("attention_norm",),
    "attn_norm": ("residual",),
    "mlp_norm": ("mlp_residual",),
    "expert_fc1": ("expert_input",),
    "moe_act": ("expert_hidden",),
    "fused_group_mlp": ("expert_input", "expert_hidden", "expert_activation"),
}
EXPERT = ("expert_input", "expert_hidden", "expert_activation")


def saved_by_tensor(recipe: Recipe, *, is_moe: bool) -> dict[str, float]:
    """Bytes a token of this rank's sequence share (sequence / CP), by tensor, before recompute and offload."""
    model, now = recipe.architecture, layout_of(recipe)
    wide = 4 if recipe.training.precision == "fp32" else 2
    narrow = 1 if fp8(recipe) or fp4(recipe) else wide  # inputs of linear layers are kept quantized
    along = now.tp if recipe.knob("sequence_parallel") else 1  # tensors between the TP regions
    gate = 2 if model.gated_linear_unit else 1
    query, key, value = attention_channels(model)
    latent = (model.q_lora_rank or 0) + (model.kv_lora_rank or 0) if model.multi_latent_attention else 0
    saved = {
        "residual": model.hidden_size * wide / along,
        "attention_norm": model.hidden_size * narrow / along,
        "latents": latent * (wide + narrow),
        "queries_keys_values": (query + key + value) * wide / now.tp,
        "attention_output": (value if model.multi_latent_attention else query) * wide / now.tp,
        "mlp_residual": model.hidden_size * wide / along,
        "mlp_norm": model.hidden_size * narrow / along,
    }
    if not is_moe:
        width = dense_width(model) / now.tp
        return saved | {"dense_hidden": gate * width * wide, "dense_activation": width * narrow}
    shared = (model.moe_shared_expert_intermediate_size or 0) / now.tp
    copies = model.moe_router_topk * (now.etp / along) * _padding(recipe)
    width = expert_width(model) / now.etp
    return saved | {
        "shared_hidden": gate * shared * wide,
        "shared_activation": shared * narrow,
        "router": (model.num_moe_experts or 0) * 4 * 2 / along,  # logits and probabilities in fp32
        "expert_input": copies * model.hidden_size * narrow,
        "expert_hidden": copies * gate * width * wide,
        "expert_activation": copies * width * narrow,
    }


def _padding(recipe: Recipe) -> float:
    """Tokens an expert holds over its even share: its capacity where inputs are padded to it."""
    padded = recipe.knob("moe_pad_expert_input_to_capacity")
    return float(recipe.knob("moe_expert_capacity_factor") or 1.0) if padded else 1.0


def kept(recipe: Recipe, saved: dict[str, float]) -> dict[str, float]:
    """What of `saved` stays on the device after selective recompute and fine-grained offload."""
    gone: set[str] = set()
    if recipe.knob("recompute_granularity") == "selective":
        modules = recipe.knob("recompute_modules")
        gone |= {name for module in modules or () for name in RECOMPUTED[module]}
    if recipe.knob("fine_grained_activation_offloading"):
        gone |= {name for module in recipe.knob("offload_modules") or () for name in OFFLOADED[module]}
    return {name: size for name, size in saved.items() if name not in gone}
