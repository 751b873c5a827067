"""The legal base recipe of the rules' examples, which give differences from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainer.recipe.rules.rule import Example, Rule
from trainer.recipe.schema import Recipe

MODEL: dict[str, Any] = {
    "num_layers": 8,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_query_groups": 8,
    "vocab_size": 32000,
    "ffn_hidden_size": 4096,
    "num_moe_experts": 16,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 1024,
    "moe_shared_expert_intermediate_size": 1024,
    "moe_layer_freq": (0, 1, 1, 1, 1, 1, 1, 1),
}
CLUSTER: dict[str, Any] = {"gpu": "h100", "nodes": 2, "gpus_per_node": 8}
KNOBS: dict[str, Any] = {
    "seq_length": 4096,
    "global_batch_size": 64,
    "expert_model_parallel_size": 8,
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "moe_grouped_gemm": True,
    "moe_router_dtype": "fp32",
}
# Settings that are only legal together, for examples that need them
TP2: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1}
FULL: dict[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
PIPELINE: dict[str, Any] = {
    "pipeline_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": 2,
    "overlap_p2p_comm": True,
}
# experts as one fused operation, with what that needs
FUSED: dict[str, Any] = {
    "use_transformer_engine_op_fuser": True,
    "NVTE_CUTEDSL_FUSED_GROUPED_MLP": 1,
    "moe_mlp_glu_interleave_size": 32,
}
DENSE: dict[str, Any] = {
    "num_moe_experts": None,
    "moe_ffn_hidden_size": None,
    "moe_shared_expert_intermediate_size": None,
}
MLA: dict[str, Any] = {
    "multi_latent_attention": True,
    "num_query_groups": None,
    "kv_lora_rank": 128,
    "qk_head_dim": 64,
    "qk_pos_emb_head_dim": 32,
    "v_head_dim": 64,
}
DELTA: dict[str, Any] = {"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": 4}
DELTA_NET: dict[str, Any] = {
    **DELTA,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
CPU_CLUSTER: dict[str, Any] = {"gpu": "cpu", "nodes": 1, "gpus_per_node": 16}


def recipe_of(example: Example) -> Recipe:
    """Returns the base recipe with the example's differences."""
    data = {
        "name": "example",
        "model": MODEL | dict(example.model),
        "cluster": CLUSTER | dict(example.cluster),
        "burst": {"engine": example.engine},
    }
    return Recipe.model_validate(data).replace(KNOBS | dict(example.knobs))


def passing_of(rule: Rule) -> Example:
    """Returns the rule's passing example; the breaking one with the nearest values where it has none of its own."""
    if rule.passing is not None:
        return rule.passing
    return replace(rule.breaking, knobs={**rule.breaking.knobs, **rule.wanted(recipe_of(rule.breaking))})
