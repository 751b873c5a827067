"""Canonical form of a recipe, from which `Recipe.digest` is computed: equal for equal experiments.

A knob that has no effect given the others (recompute modules without selective recompute, a flex backend without the
flex dispatcher) has its default here, and different spellings of a setting become one. Names, tuning settings,
deadlines and the number of measured steps are left out: they do not change what is measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from trainer.recipe.architecture import YARN, Architecture, Section
from trainer.recipe.knobs import KNOBS
from trainer.recipe.predicates import (
    Test,
    above_one,
    all_of,
    among,
    fp4,
    fp8,
    has_graphs,
    has_shared_experts,
    is_dsa,
    is_mla,
    is_moe,
    on,
    on_gpu,
    quantized,
    recomputes,
)
from trainer.recipe.settings import Settings
from trainer.recipe.tables import read_table

# Fields that are part of every digest, also at their defaults. The table is closed: a field that is added later is left
# out at its default, so that the digests of older recipes do not change
FIRST_FIELDS = frozenset(f"{row['section']}.{row['field']}" for row in read_table("digest_fields.csv"))


def _flex(backend: str) -> Test:
    return all_of(is_moe, among("moe_token_dispatcher_type", "flex"), among("moe_flex_dispatcher_backend", backend))


# knob -> when it can have an effect; a knob that is not here always can
ACTS_WHEN: dict[str, Test] = {
    "sequence_parallel": above_one("tensor_model_parallel_size"),
    "tp_comm_overlap": above_one("tensor_model_parallel_size"),
    "cp_comm_type": above_one("context_parallel_size"),
    "hierarchical_context_parallel_sizes": all_of(above_one("context_parallel_size"), among("cp_comm_type", "a2a+p2p")),
    "overlap_p2p_comm": above_one("virtual_pipeline_model_parallel_size"),
    "microbatch_group_size_per_vp_stage": above_one("virtual_pipeline_model_parallel_size"),
    "num_layers_in_first_pipeline_stage": above_one("pipeline_model_parallel_size"),
    "num_layers_in_last_pipeline_stage": above_one("pipeline_model_parallel_size"),
    "account_for_embedding_in_pipeline_split": above_one("pipeline_model_parallel_size"),
    "account_for_loss_in_pipeline_split": above_one("pipeline_model_parallel_size"),
    "recompute_modules": all_of(among("recompute_granularity", "selective"), recomputes),
    "recompute_method": among("recompute_granularity", "full"),
    "recompute_num_layers": among("recompute_granularity", "full"),
    "distribute_saved_activations": among("recompute_granularity", "full"),
    "cpu_offloading_num_layers": on("cpu_offloading"),
    "offload_modules": on("fine_grained_activation_offloading"),
    "fine_grained_offloading_max_inflight_offloads": on("fine_grained_activation_offloading"),
    "min_offloaded_tensor_size": on("fine_grained_activation_offloading"),
    "activation_offload_fraction": on("fine_grained_activation_offloading"),
    "optimizer_offload_fraction": on("optimizer_cpu_offload"),
    "overlap_cpu_optimizer_d2h_h2d": on("optimizer_cpu_offload"),
    "main_grads_dtype": on("use_precision_aware_optimizer"),
    "main_params_dtype": on("use_precision_aware_optimizer"),
    "exp_avg_dtype": on("use_precision_aware_optimizer"),
    "exp_avg_sq_dtype": on("use_precision_aware_optimizer"),
    "store_param_remainders": on("use_precision_aware_optimizer"),
    "num_distributed_optimizer_instances": on("use_distributed_optimizer"),
    "overlap_param_gather": on("use_distributed_optimizer"),
    "data_parallel_sharding_strategy": on("use_megatron_fsdp"),
    "outer_dp_sharding_strategy": on("use_megatron_fsdp"),
    "fsdp_double_buffer": on("use_megatron_fsdp"),
    "keep_fp8_transpose_cache": all_of(on("use_megatron_fsdp"), on_gpu, fp8),
    "expert_tensor_parallel_size": is_moe,
    "moe_token_dispatcher_type": is_moe,
    "moe_flex_dispatcher_backend": all_of(is_moe, among("moe_token_dispatcher_type", "flex")),
    "moe_deepep_num_sms": _flex("deepep"),
    "moe_hybridep_num_sms": _flex("hybridep"),
    "moe_hybridep_num_sms_preprocessing": _flex("hybridep"),
    "moe_flex_dispatcher_num_sms": _flex("ncclep"),
    "moe_ncclep_static_shape": _flex("ncclep"),
    "moe_ncclep_zero_copy": all_of(_flex("ncclep"), on("moe_ncclep_static_shape")),
    "moe_permute_fusion_into_hybridep": _flex("hybridep"),
    "moe_paged_stash_buffer_size_factor_cuda": on("moe_paged_stash"),
    "moe_paged_stash_buffer_size_factor_cpu": on("moe_paged_stash"),
    "moe_grouped_gemm": is_moe,
    "use_transformer_engine_op_fuser": is_moe,
    "moe_mlp_glu_interleave_size": all_of(is_moe, on("moe_grouped_gemm")),
    "moe_single_grouped_weight": all_of(is_moe, on("use_transformer_engine_op_fuser")),
    "moe_permute_fusion": is_moe,
    "moe_router_fusion": is_moe,
    "moe_router_dtype": is_moe,
    "moe_apply_probs_on_input": is_moe,
    "moe_router_load_balancing_type": is_moe,
    "moe_router_force_load_balancing": is_moe,
    "moe_router_force_biased": is_moe,
    "moe_shared_expert_overlap": has_shared_experts,
    "delay_wgrad_compute": on("overlap_moe_expert_parallel_comm"),
    "high_priority_a2a_comm_stream": on("overlap_moe_expert_parallel_comm"),
    "ep_overlap_early_attn_memory_release": on("overlap_moe_expert_parallel_comm"),
    "overlap_dispatch_backward_with_experts_wgrad": is_moe,
    "moe_pad_expert_input_to_capacity": on("moe_expert_capacity_factor"),
    "cross_entropy_fusion_impl": on("cross_entropy_loss_fusion"),
    "cuda_graph_scope": has_graphs,
    "cuda_graph_warmup_steps": has_graphs,
    "cuda_graph_use_single_mempool": has_graphs,
    "optimizer_cuda_graph": on_gpu,
    "fused_residual_rmsnorm": on_gpu,
    "mla_down_proj_fusion": all_of(on_gpu, is_mla),
    "dsa_kernel_backend": all_of(on_gpu, is_dsa),
    "fp4_param_gather": all_of(on_gpu, fp4),
    "use_te_rng_tracker": has_graphs,
    "reuse_grad_buf_for_mxfp8_param_ag": on("fp8_param_gather"),
    "fp8_dot_product_attention": all_of(on_gpu, quantized),
    "fp8_output_proj": all_of(on_gpu, among("precision", "mxfp8")),
    "first_last_layers_bf16": all_of(on_gpu, quantized),
    "num_layers_at_start_in_bf16": all_of(on_gpu, quantized, on("first_last_layers_bf16")),
    "num_layers_at_end_in_bf16": all_of(on_gpu, quantized, on("first_last_layers_bf16")),
    "manual_gc_interval": on("manual_gc"),
    "transformer_impl": on_gpu,
    "attention_backend": on_gpu,
    **{name: on_gpu for name, knob in KNOBS.items() if knob.acts == "environment"},
    "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": _flex("hybridep"),
    "NVTE_CUTEDSL_FUSED_GROUPED_MLP": all_of(on_gpu, is_moe, on("use_transformer_engine_op_fuser")),
    "CUDNNFE_CLUSTER_OVERLAP_MARGIN": all_of(on_gpu, is_moe, on("NVTE_CUTEDSL_FUSED_GROUPED_MLP")),
}


def _granularity(recipe: Settings, value: str | None) -> str | None:
    """Returns the granularity; None for selective recompute of no modules, which recomputes nothing."""
    return None if value == "selective" and recipe.knob("recompute_modules") == () else value


# knob -> function that returns the canonical spelling of its value
SPELLING: dict[str, Callable[[Settings, Any], Any]] = {
    "expert_tensor_parallel_size": lambda recipe, _: recipe.expert_tensor_parallel_size,
    "virtual_pipeline_model_parallel_size": lambda _, value: value if value and value > 1 else None,
    "recompute_granularity": _granularity,
    "recompute_modules": lambda _, value: ("core_attn",) if value is None else value,
    "microbatch_group_size_per_vp_stage": lambda recipe, value: (
        value or recipe.parallelism.pipeline_model_parallel_size
    ),
    "cp_comm_type": lambda _, value: value or "p2p",
    "grad_reduce_in_fp32": lambda recipe, value: (
        value if value is not None else recipe.training.precision not in ("fp32", "fp16")
    ),
    "cuda_graph_scope": lambda _, value: value or (),
}


# Fields of the model that change only the numbers that are computed: no shape, no main kernel, no time. A simulation
# does not distinguish them, and a recipe without them has the digest it had before they were added.
NUMBERS_ONLY = frozenset(
    {
        "moe_router_pre_softmax",
        "moe_router_topk_scaling_factor",
        "moe_router_enable_expert_bias",
        "moe_router_bias_update_rate",
        "moe_aux_loss_coeff",
        "mtp_loss_scaling_factor",
        "activation_func",
        "activation_func_clamp_value",
        "glu_linear_offset",
        "qk_l2_norm",
        "layernorm_epsilon",
        "layernorm_zero_centered_gamma",
        "init_method_std",
        "rotary_base",
        "rotary_percent",
        "rotary_interleaved",
        "no_rope_freq",
        "use_rope_scaling",
        "rope_scaling_factor",
        "rope_type",
        *YARN,
        "yarn_correction_range_round_to_int",
        "attention_chunk_size",
    }
)


def acts(recipe: Settings, name: str) -> bool:
    """Returns whether the knob, at any value, can have an effect given the recipe's other knobs."""
    return name not in ACTS_WHEN or ACTS_WHEN[name](recipe)


def requested_knobs(recipe: Settings) -> list[str]:
    """Returns the knobs with an effect that the recipe sets to a value other than null; those of sections other than
    `knobs` count as set even at their default."""
    named = [name for name, knob in KNOBS.items() if knob.section != "knobs" or name in recipe.knobs]
    return [name for name in named if recipe.knob(name) is not None and acts(recipe, name)]


# knobs that have their default's canonical value wherever they are not written, with or without an effect
_PLAIN = frozenset(
    name
    for name, knob in KNOBS.items()
    if knob.section == "knobs" and name not in SPELLING and not isinstance(knob.default, tuple)
)


def effective(recipe: Settings, name: str) -> Any:
    """Returns the knob's canonical value; its default if it has no effect. Lists of words are sets: they are sorted."""
    if (name in _PLAIN and name not in recipe.knobs) or not acts(recipe, name):
        return KNOBS[name].default
    return _spelled(recipe, name, recipe.knob(name))


def _spelled(recipe: Settings, name: str, value: Any) -> Any:
    value = SPELLING[name](recipe, value) if name in SPELLING else value
    if not isinstance(value, tuple):
        return value
    return list(value) if KNOBS[name].domain.kind == "sizes" else sorted(set(value))


def _beside_the_model(recipe: Settings) -> dict[str, Any]:
    """Returns everything but the architecture that a measurement can depend on, as JSON types; of fields not in
    FIRST_FIELDS, only those that differ from their defaults."""
    machine = recipe.burst.machine if recipe.burst.engine == "simulated" else None
    trainer = recipe.trainer if recipe.burst.engine == "command" else None
    return {
        **({"machine": _as_json(machine, "machine")} if machine else {}),
        **({"trainer": _as_json(trainer, "trainer")} if trainer else {}),
        **({"environment": dict(recipe.burst.env)} if recipe.burst.env else {}),
        **_hardware(recipe),
        "nodes": recipe.cluster.nodes,
        "world_size": recipe.world_size,
        "memory_limit_gib": recipe.memory_limit_gib,
        "engine": recipe.burst.engine,
        "launcher": recipe.burst.launcher_kind,
        "knobs": _knobs(recipe),
    }


def _hardware(recipe: Settings) -> dict[str, Any]:
    """Returns the GPU's name or figures, and the network if the recipe overrides the table's."""
    gpu, network = recipe.cluster.gpu, recipe.cluster.network_gbit_s
    named = gpu if isinstance(gpu, str) else gpu.model_dump(mode="json", exclude_defaults=True)
    return {"gpu": named} | ({} if network is None else {"network_gbit_s": network})


def _as_json(section: Section, field: str) -> dict[str, Any]:
    """Returns the section as JSON types, without fields that are not in FIRST_FIELDS and at their default.

    `field` is the section's key.
    """
    return section.model_dump(mode="json", exclude=_new_defaults(section, field))


def _new_defaults(section: Section, field: str) -> dict[Any, Any]:
    """Returns the fields that are not in FIRST_FIELDS and at their defaults, nested as in pydantic's `exclude`."""
    found: dict[Any, Any] = {}
    for name, value in section:
        place = f"{field}.{name}"
        if place not in FIRST_FIELDS and value == _default(section, name):
            found[name] = True
        elif isinstance(value, Section):
            found[name] = _new_defaults(value, place)
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            found[name] = _filled({index: _new_defaults(item, place) for index, item in enumerate(value)})
    return _filled(found)


def _filled(found: dict[Any, Any]) -> dict[Any, Any]:
    return {name: below for name, below in found.items() if below}


def _default(section: Section, name: str) -> Any:
    return type(section).model_fields[name].get_default(call_default_factory=True)


_COMPUTED = tuple(name for name in KNOBS if name not in _PLAIN)
# what `_knobs` returns for the others where they are not written
_UNWRITTEN = {name: KNOBS[name].default for name in _PLAIN if f"knobs.{name}" in FIRST_FIELDS}


def _knobs(recipe: Settings) -> dict[str, Any]:
    """Returns every knob's effective value; of knobs not in FIRST_FIELDS, only values other than the default."""
    values = {name: effective(recipe, name) for name in (*_COMPUTED, *recipe.knobs)}
    return _UNWRITTEN | {
        name: value
        for name, value in values.items()
        if f"knobs.{name}" in FIRST_FIELDS or value != _spelled(recipe, name, KNOBS[name].default)
    }


@lru_cache(maxsize=64)  # a search takes the digests of thousands of recipes of one model
def _architecture(model: Architecture, simulated: bool) -> str:
    """Returns the model's fields as JSON; NUMBERS_ONLY fields only where they differ from the default and the engine is
    not simulated."""
    moved = model.model_dump(exclude_defaults=True)
    fields = {
        name: value
        for name, value in _as_json(model, "architecture").items()
        if name not in NUMBERS_ONLY or (name in moved and not simulated)
    }
    return json.dumps(fields | _as_simulated(model) if simulated else fields, sort_keys=True)


def _as_simulated(model: Architecture) -> dict[str, Any]:
    """Returns older spellings of fields that a simulation does not distinguish, so that recorded simulations, whose
    noise is seeded by the digest, stay reproducible. A router with an expert bias was recorded as softmax if the model
    has no latent attention."""
    fields = {}
    if model.position_embedding_type in ("yarn", "none"):
        fields["position_embedding_type"] = "rope"
    if model.moe_router_enable_expert_bias and not model.multi_latent_attention:
        fields["moe_router_score_function"] = "softmax"
    return fields


def digest_of(recipe: Settings) -> str:
    architecture = _architecture(recipe.architecture, recipe.burst.engine == "simulated")
    rest = json.dumps(_beside_the_model(recipe), sort_keys=True)
    text = f'{{"architecture": {architecture}, {rest[1:]}'
    return hashlib.sha256(text.encode()).hexdigest()[:16]
