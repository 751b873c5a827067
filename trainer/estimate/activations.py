"""Bytes of activations that one layer keeps for backward, for one token, by closed form.

Counted as the tensors Megatron-Core saves, with the memory-efficient permutation (router probabilities applied inside
the activation, so that expert outputs are not kept). Which module recomputes or offloads a tensor is
`activations.csv`. "A token" is one of the rank's share of the sequence (sequence / CP). Shapes: [N], or [] where all
rows share one value.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from importlib.resources import files

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats
from trainer.estimate.parameters import attention_channels, dense_width, expert_width
from trainer.estimate.state import quantizes

Tensors = dict[str, Floats]
MASK_BYTES = 1.0  # of one entry of a dropout mask
STATISTICS_BYTES = 4.0  # of one log-sum-exp
ROUTER_TENSORS = 3.0  # logits, scores and probabilities, all in fp32, of every expert


@cache
def tensor_table() -> dict[str, dict[str, str]]:
    """The rows of `activations.csv` by tensor."""
    text = (files("trainer.estimate") / "activations.csv").read_text(encoding="utf-8")
    return {row["tensor"]: row for row in csv.DictReader(text.splitlines())}


def saved_by_tensor(candidates: Candidates, *, is_moe: bool) -> Tensors:
    """Bytes a token, by tensor, before recompute and offload."""
    feed_forward = _experts(candidates) if is_moe else _dense(candidates)
    return _attention(candidates) | _between(candidates) | feed_forward


def wide_bytes(candidates: Candidates) -> Floats:
    """Of one entry of the tensors that stay in the training precision."""
    return np.where(candidates.among("precision", "fp32"), 4.0, 2.0)


def narrow_bytes(candidates: Candidates) -> Floats:
    """Of one entry of the inputs of linear layers, which are kept quantized."""
    return np.where(quantizes(candidates), 1.0, wide_bytes(candidates))


def along(candidates: Candidates) -> Floats:
    """Ranks that share what lies between the tensor-parallel regions."""
    return np.where(candidates.on("sequence_parallel"), candidates.tp, 1.0)


def keeps_scores(candidates: Candidates) -> Flags:
    """Unfused attention; a CPU's local layers are counted apart (see `memory.py`)."""
    local = candidates.among("transformer_impl", "local") & (not candidates.base.hardware.is_cpu)
    return local | candidates.among("attention_backend", "unfused", "local")


def _attention(candidates: Candidates) -> Tensors:
    model, tp = candidates.base.architecture, candidates.tp
    wide, narrow = wide_bytes(candidates), narrow_bytes(candidates)
    hidden = model.hidden_size / along(candidates)
    query, key, value = attention_channels(model)
    heads, output = model.num_attention_heads, value if model.multi_latent_attention else query
    scores = heads / tp * candidates.number("seq_length") * keeps_scores(candidates)
    dropped = (MASK_BYTES + wide) * (model.attention_dropout > 0)
    normed = model.qk_layernorm and not model.multi_latent_attention
    return {
        "residual": hidden * wide,
        "attention_norm": hidden * narrow,
        "latents": _latent_channels(candidates) * (wide + narrow) / along(candidates),
        "queries_keys_values": (query + key + value) * wide / tp,
        "unrotated": (query + key + value) * wide / tp * normed,
        "scores": scores * (wide + dropped),
        "attention_output": output * wide / tp + heads * STATISTICS_BYTES / tp,
    }


def _latent_channels(candidates: Candidates) -> float:
    model = candidates.base.architecture
    if not model.multi_latent_attention:
        return 0.0
    return float((model.q_lora_rank or 0) + (model.kv_lora_rank or 0))


def _between(candidates: Candidates) -> Tensors:
    model = candidates.base.architecture
    hidden = model.hidden_size / along(candidates)
    mask = hidden * MASK_BYTES * (model.hidden_dropout > 0)
    return {
        "attention_dropout_mask": mask,
        "mlp_residual": hidden * wide_bytes(candidates),
        "mlp_norm": hidden * narrow_bytes(candidates),
        "mlp_dropout_mask": mask,
    }


def _dense(candidates: Candidates) -> Tensors:
    model = candidates.base.architecture
    width = dense_width(model) / candidates.tp
    gate = 2 if model.gated_linear_unit else 1
    return {
        "dense_hidden": gate * width * wide_bytes(candidates),
        "dense_activation": width * narrow_bytes(candidates),
    }


def _experts(candidates: Candidates) -> Tensors:
    model = candidates.base.architecture
    wide, narrow = wide_bytes(candidates), narrow_bytes(candidates)
    gate = 2 if model.gated_linear_unit else 1
    shared = (model.moe_shared_expert_intermediate_size or 0) / candidates.tp
    copies = copies_of_a_token(candidates)
    width = expert_width(model) / candidates.etp
    unfused = not model.gated_linear_unit  # only the gated activation has a kernel that weighs by probability
    return {
        "shared_hidden": gate * shared * wide,
        "shared_activation": shared * narrow,
        "router": (model.num_moe_experts or 0) * (4 * ROUTER_TENSORS + MASK_BYTES) / along(candidates),
        "expert_input": copies * model.hidden_size * narrow,
        "expert_hidden": copies * gate * width * wide,
        "expert_unweighted": copies * width * wide * unfused,
        "expert_activation": copies * width * narrow,
    }


def copies_of_a_token(candidates: Candidates) -> Floats:
    """Tokens that this rank's experts work on over its own, with an even load."""
    padded = candidates.on("moe_pad_expert_input_to_capacity")
    capacity = np.where(padded, candidates.number("moe_expert_capacity_factor", none=1.0), 1.0)
    return candidates.base.architecture.moe_router_topk * candidates.etp / along(candidates) * capacity


def gone(candidates: Candidates, column: str) -> dict[str, Flags]:
    """Which tensors selective recompute (`recompute`) or fine-grained offload (`offload`) does not keep."""
    knob, switch = {
        "recompute": ("recompute_modules", candidates.among("recompute_granularity", "selective")),
        "offload": ("offload_modules", candidates.on("fine_grained_activation_offloading")),
    }[column]
    default = ("core_attn",) if column == "recompute" else ()
    return {
        tensor: switch & candidates.where(knob, _names_any_of(row[column].split(), default))
        for tensor, row in tensor_table().items()
    }


def _names_any_of(modules: list[str], default: tuple[str, ...]) -> Callable[[tuple[str, ...] | None], bool]:
    return lambda words: not set(modules).isdisjoint(default if words is None else words)


def kept(candidates: Candidates, saved: Tensors) -> Tensors:
    """What of `saved` stays on the device after selective recompute and fine-grained offload."""
    recomputed, offloaded = gone(candidates, "recompute"), gone(candidates, "offload")
    return {name: np.where(recomputed[name] | offloaded[name], 0.0, size) for name, size in saved.items()}


def routed(tensors: Tensors) -> Floats:
    """The part that grows with the load of this rank's experts."""
    return sum((size for name, size in tensors.items() if tensor_table()[name]["routed"]), np.zeros(()))
