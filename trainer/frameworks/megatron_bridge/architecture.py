"""The model as fields of a Bridge provider; nearly all have Megatron-Core's names, which are ours.

A field at our default is written too, since the Bridge recipe may have another value (an MTP layer, an expert bias). It
is added with `++`, so that a provider without such a field ignores it. Source: gpt_provider.py, mla_provider.py and
mamba/mamba_provider.py of src/megatron/bridge/models (0.3.1 and 0.6.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trainer.recipe.architecture import YARN, Architecture

RENAMED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "untie_embeddings_and_output_weights": ("share_embeddings_and_output_weights", lambda value: not value),
    "use_rope_scaling": ("rope_scaling", lambda value: value),
    "make_vocab_size_divisible_by": ("make_vocab_size_divisible_by", lambda value: value or 1),
}
# Fields that no override can set: the Bridge recipe decides them, and an export says so
NOT_FIELDS = {
    "hybrid": "the layer pattern is that of the Bridge recipe",
    "activation_func": "a Python function, which no override can name: it is that of the Bridge recipe",
    "attention_chunk_size": "Megatron-Core has no field for it",
}
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_type")
# Fields of few models: written only if the model sets one, since most providers lack them
RARE = frozenset(
    (
        "mamba_dt_rank",
        "mtp_hybrid_override_pattern",
        "mtp_use_repeated_layer",
        "dsa_indexer_n_heads",
        "dsa_indexer_head_dim",
        "dsa_indexer_topk",
        "csa_compress_ratios",
        "csa_window_size",
        "o_groups",
        "o_lora_rank",
        "enable_hyper_connections",
        "num_residual_streams",
        "moe_n_hash_layers",
    )
)
YARN_ALONE = ("yarn_correction_range_round_to_int",)  # latent attention has no such field


def fields(model: Architecture) -> Iterator[tuple[str, str, Any, bool]]:
    """Yields (our name, the provider's name, value, whether it differs from our default) of every field that acts."""
    moved = model.model_dump(exclude_defaults=True)
    for name, value in model.model_dump().items():
        if name in NOT_FIELDS or not _acts(model, name) or (name in RARE and name not in moved):
            continue
        field, change = RENAMED.get(name, (name, _same))
        if name in YARN and not model.multi_latent_attention:
            field = f"yarn_{name}"
        yield name, field, change(value), name in moved


def fields_not_expressed(model: Architecture) -> Iterator[tuple[str, Any, str]]:
    """Yields (field, value, reason) of values of the model that no override can set."""
    for name, value in model.model_dump(exclude_defaults=True).items():
        if name in NOT_FIELDS:
            yield name, value, NOT_FIELDS[name]


def _acts(model: Architecture, name: str) -> bool:
    latent = model.multi_latent_attention
    yarn = model.position_embedding_type == "yarn" and not latent
    if name in LATENT:
        return latent
    if name in YARN:
        return latent or yarn
    if name in YARN_ALONE:
        return yarn
    if name == "rope_scaling_factor":
        return model.use_rope_scaling
    return name != "kv_channels" or not latent


def _same(value: Any) -> Any:
    return value
