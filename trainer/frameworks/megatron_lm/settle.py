"""Megatron-LM's changes to its arguments before training (`validate_args`), for those that a recipe has.

Deprecated spellings are replaced, one setting switches another, and missing values are computed. Each change is one
row; its source is `validate_args` of megatron/training/arguments.py at core_v0.16.1 and main d98e8a64. `settled` is
idempotent: values from a log, which are settled already, do not change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from trainer.recipe.layout import pipeline_stages
from trainer.recipe.rules.precision import STATE_DTYPES

Values = dict[str, Any]
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "uint8"}
# defaults of DeepEP (token_dispatcher.py of main: None is 20) and HybridEP (transformer_config.py of 0.16.1)
SMS = {"moe_deepep_num_sms": 20, "moe_hybridep_num_sms": 16}
LISTS_OF_ONE = ("moe_router_load_balancing_type", "moe_aux_loss_coeff", "cp_comm_type")


def settled(values: Mapping[str, Any], *, world_size: int | None) -> Values:
    """Returns the values after every change. Without a world size, the global batch size stays as written."""
    found = dict(values)
    for turn in TURNS:
        turn(found)
    if found["global_batch_size"] is None and world_size is not None and found["micro_batch_size"]:
        found["global_batch_size"] = found["micro_batch_size"] * max(1, world_size // _model_parallel(found))
    return found


def _model_parallel(values: Values) -> int:
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    sizes = [values[name] for name in names]
    return int(sizes[0] * sizes[1] * sizes[2])


def _recompute(values: Values) -> None:
    if values["recompute_activations"]:
        values["recompute_granularity"] = "selective"


def _graphs(values: Values) -> None:
    if values["enable_cuda_graph"]:
        values["cuda_graph_impl"] = "local"
    if values["external_cuda_graph"]:
        values["cuda_graph_impl"] = "transformer_engine"
    scope = [word for word in values["cuda_graph_modules"] or values["cuda_graph_scope"] or () if word != "full"]
    values["cuda_graph_scope"] = values["cuda_graph_modules"] = scope
    if values["cuda_graph_impl"] != "none" and "transformer_engine" in (
        values["transformer_impl"],
        values["cuda_graph_impl"],
    ):
        values["te_rng_tracker"] = True


def _stages(values: Values) -> None:
    """Sets the chunks per rank; without chunks there is neither p2p overlap nor aligned gathers."""
    chunks = _chunks(values)
    values["virtual_pipeline_model_parallel_size"] = chunks if chunks and chunks > 1 else None
    if values["virtual_pipeline_model_parallel_size"] is None:
        values["overlap_p2p_comm"] = values["align_param_gather"] = False


def _chunks(values: Values) -> int | None:
    pp = values["pipeline_model_parallel_size"]
    if layout := values["pipeline_model_parallel_layout"]:
        try:
            return int(len(pipeline_stages(layout)) // pp)
        except ValueError:
            return None
    per_chunk, hybrid = values["num_layers_per_virtual_pipeline_stage"], values["hybrid_layer_pattern"]
    if per_chunk and values["num_layers"] and not values["num_virtual_stages_per_pipeline_rank"]:
        extra = values["account_for_embedding_in_pipeline_split"] + values["account_for_loss_in_pipeline_split"]
        return int((values["num_layers"] + extra) // pp // per_chunk)
    if hybrid and "|" in hybrid.split("/")[0]:
        return int((hybrid.split("/")[0].count("|") + 1) // pp)
    written: int | None = values["num_virtual_stages_per_pipeline_rank"]
    chunks: int | None = written or values.get("virtual_pipeline_model_parallel_size")
    return chunks


def _experts(values: Values) -> None:
    values["num_experts"] = values["num_experts"] or None
    for name in LISTS_OF_ONE:
        if isinstance(values[name], list) and len(values[name]) == 1:
            values[name] = values[name][0]
    if values["moe_enable_deepep"]:
        values["moe_flex_dispatcher_backend"] = "deepep"
    for name, default in SMS.items():  # one flag for both since 0.19
        values[name] = values.get("moe_flex_dispatcher_num_sms") or values[name] or default
    values["moe_router_padding_for_quantization"] |= values["moe_router_padding_for_fp8"]


def _widths(values: Values) -> None:
    hidden = values["hidden_size"]
    if values["ffn_hidden_size"] is None and hidden:
        values["ffn_hidden_size"] = int((4 * hidden * 2 / 3) / 64) * 64 if values["swiglu"] else 4 * hidden
    if values["num_layers"] is None:
        values["num_layers"] = values["encoder_num_layers"]
    if values["seq_length"] is None:
        values["seq_length"] = values["encoder_seq_length"]


def _positions(values: Values) -> None:
    if values["use_rotary_position_embeddings"]:
        values["position_embedding_type"] = "rope"
    if values["multi_latent_attention"]:  # MLATransformerConfig's own default
        values["rope_type"] = values["rope_type"] or "yarn"


def _biases(values: Values) -> None:
    values["add_qkv_bias"] = values["add_qkv_bias"] or values["add_bias_linear"]


def _gradients(values: Values) -> None:
    """Sets the dtypes of state and of gradient reduction: with --bf16, fp32 unless --grad-reduce-in-bf16 is given."""
    for name in STATE_DTYPES:
        values[name] = DTYPES.get(values[name], values[name])
    if values["grad_reduce_in_bf16"]:
        values["accumulate_allreduce_grads_in_fp32"] = False
    elif values["bf16"] and values["main_grads_dtype"] == "float32":
        values["accumulate_allreduce_grads_in_fp32"] = True


def _sequence(values: Values) -> None:
    if values["tensor_model_parallel_size"] == 1:
        values["sequence_parallel"] = False


def _sharding(values: Values) -> None:
    if values["use_megatron_fsdp"]:
        values["reuse_grad_buf_for_mxfp8_param_ag"] = False
        values["fsdp_double_buffer"] |= values["nccl_ub"]


def _hybrid(values: Values) -> None:
    values["hybrid_layer_pattern"] = values["hybrid_layer_pattern"] or values["hybrid_override_pattern"]
    if pattern := values["hybrid_layer_pattern"]:
        values["hybrid_layer_pattern"], *predicted = pattern.split("/")
        if predicted:  # one part per MTP layer
            values["mtp_hybrid_override_pattern"], values["mtp_num_layers"] = predicted[0], len(predicted)
        values["num_layers"] = len(re.sub(r"[^A-Z*-]", "", pattern.split("/")[0])) or values["num_layers"]


TURNS: tuple[Callable[[Values], None], ...] = (
    _widths,
    _hybrid,
    _recompute,
    _graphs,
    _stages,
    _experts,
    _positions,
    _biases,
    _gradients,
    _sequence,
    _sharding,
)
