"""Reduces a model to some of its layers; adapts every field that refers to layers by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.recipe.architecture import HYBRID_LETTERS, Architecture


def with_layers(model: Architecture, kept: Sequence[int]) -> Architecture:
    """Returns the model with only these decoder layers (counted from 0, ascending), each of its own kind, and its MTP
    layers."""
    changed: dict[str, Any] = {"num_layers": len(kept)}
    if model.num_moe_experts is not None and model.moe_layer_freq != 1:
        changed["moe_layer_freq"] = _flags(model.moe_layers, kept)
    if letters := model.hybrid_pattern:
        words = HYBRID_LETTERS.sub("", model.hybrid or "", count=1)
        changed["hybrid"] = "".join(letters[layer] for layer in kept) + words
    if model.linear_attention_freq is not None:
        linear = [kind.mixer == model.experimental_attention_variant for kind in model.layer_kinds]
        changed["linear_attention_freq"] = _flags(linear, kept)
    if model.window_attn_skip_freq is not None:
        changed["window_attn_skip_freq"] = _flags(model.windowed_layers, kept)
    if isinstance(model.no_rope_freq, tuple):
        changed["no_rope_freq"] = tuple(model.no_rope_freq[layer] for layer in kept)
    if model.csa_compress_ratios is not None:
        ratios = model.csa_compress_ratios
        changed["csa_compress_ratios"] = (*(ratios[layer] for layer in kept), *ratios[model.num_layers :])
    if model.moe_n_hash_layers:
        changed["moe_n_hash_layers"] = sum(layer < model.moe_n_hash_layers for layer in kept)
    return model.model_copy(update=changed)


def _flags(by_layer: Sequence[bool], kept: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(by_layer[layer]) for layer in kept)
