"""When two recipes are the same experiment: the canonical form behind `Recipe.digest`.

A knob that cannot act beside the others (recompute modules without selective recompute, a flex backend without the
flex dispatcher) takes its default here, and spellings of one setting become one. Names, tuning settings, deadlines
and the number of steps measured change nothing that is measured, and stay out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainer.recipe.knobs import KNOBS

if TYPE_CHECKING:
    from trainer.recipe.schema import Recipe

Test = Callable[["Recipe"], bool]


def _is(name: str, *values: Any) -> Test:
    return lambda recipe: recipe.knob(name) in values


def _above_one(name: str) -> Test:
    return lambda recipe: (recipe.knob(name) or 1) > 1


def _on_gpu(recipe: Recipe) -> bool:
    return not recipe.hardware.is_cpu


def _is_moe(recipe: Recipe) -> bool:
    return recipe.architecture.num_moe_experts is not None


def _has_graphs(recipe: Recipe) -> bool:
    return bool(recipe.knob("cuda_graph_impl") != "none")


def _flex(backend: str) -> Test:
    def acts(recipe: Recipe) -> bool:
        dispatcher, chosen = recipe.knob("moe_token_dispatcher_type"), recipe.knob("moe_flex_dispatcher_backend")
        return _is_moe(recipe) and dispatcher == "flex" and chosen == backend

    return acts


# knob -> when it can act; a knob that is not here always can
ACTS_WHEN: dict[str, Test] = {
    "sequence_parallel": _above_one("tensor_model_parallel_size"),
    "tp_comm_overlap": _above_one("tensor_model_parallel_size"),
    "cp_comm_type": _above_one("context_parallel_size"),
    "overlap_p2p_comm": _above_one("virtual_pipeline_model_parallel_size"),
    "microbatch_group_size_per_vp_stage": _above_one("virtual_pipeline_model_parallel_size"),
    "num_layers_in_first_pipeline_stage": _above_one("pipeline_model_parallel_size"),
    "num_layers_in_last_pipeline_stage": _above_one("pipeline_model_parallel_size"),
    "account_for_embedding_in_pipeline_split": _above_one("pipeline_model_parallel_size"),
    "account_for_loss_in_pipeline_split": _above_one("pipeline_model_parallel_size"),
    "recompute_modules": _is("recompute_granularity", "selective"),
    "recompute_method": _is("recompute_granularity", "full"),
    "recompute_num_layers": _is("recompute_granularity", "full"),
    "distribute_saved_activations": _is("recompute_granularity", "full"),
    "cpu_offloading_num_layers": _is("cpu_offloading", True),
    "offload_modules": _is("fine_grained_activation_offloading", True),
    "optimizer_offload_fraction": _is("optimizer_cpu_offload", True),
    "overlap_cpu_optimizer_d2h_h2d": _is("optimizer_cpu_offload", True),
    "main_grads_dtype": _is("use_precision_aware_optimizer", True),
    "main_params_dtype": _is("use_precision_aware_optimizer", True),
    "exp_avg_dtype": _is("use_precision_aware_optimizer", True),
    "exp_avg_sq_dtype": _is("use_precision_aware_optimizer", True),
    "store_param_remainders": _is("use_precision_aware_optimizer", True),
    "num_distributed_optimizer_instances": _is("use_distributed_optimizer", True),
    "overlap_param_gather": _is("use_distributed_optimizer", True),
    "data_parallel_sharding_strategy": _is("use_megatron_fsdp", True),
    "expert_tensor_parallel_size": _is_moe,
    "moe_token_dispatcher_type": _is_moe,
    "moe_flex_dispatcher_backend": lambda recipe: _is_moe(recipe) and _is("moe_token_dispatcher_type", "flex")(recipe),
    "moe_deepep_num_sms": _flex("deepep"),
    "moe_hybridep_num_sms": _flex("hybridep"),
    "moe_hybridep_num_sms_preprocessing": _flex("hybridep"),
    "moe_permute_fusion_into_hybridep": _flex("hybridep"),
    "moe_grouped_gemm": _is_moe,
    "moe_permute_fusion": _is_moe,
    "moe_router_fusion": _is_moe,
    "moe_router_dtype": _is_moe,
    "moe_apply_probs_on_input": _is_moe,
    "moe_router_load_balancing_type": _is_moe,
    "moe_router_force_load_balancing": _is_moe,
    "moe_shared_expert_overlap": lambda recipe: bool(recipe.architecture.moe_shared_expert_intermediate_size),
    "delay_wgrad_compute": _is("overlap_moe_expert_parallel_comm", True),
    "moe_pad_expert_input_to_capacity": lambda recipe: recipe.knob("moe_expert_capacity_factor") is not None,
    "cross_entropy_fusion_impl": _is("cross_entropy_loss_fusion", True),
    "cuda_graph_scope": _has_graphs,
    "cuda_graph_warmup_steps": _has_graphs,
    "use_te_rng_tracker": _has_graphs,
    "reuse_grad_buf_for_mxfp8_param_ag": _is("fp8_param_gather", True),
    "num_layers_at_start_in_bf16": _is("first_last_layers_bf16", True),
    "num_layers_at_end_in_bf16": _is("first_last_layers_bf16", True),
    "manual_gc_interval": _is("manual_gc", True),
    **{name: _on_gpu for name, knob in KNOBS.items() if knob.acts == "environment"},
}


def _granularity(recipe: Recipe, value: str | None) -> str | None:
    """Selective recompute of no module is no recompute."""
    return None if value == "selective" and recipe.knob("recompute_modules") == () else value


# knob -> the one spelling of what it is set to
SPELLING: dict[str, Callable[[Recipe, Any], Any]] = {
    "expert_tensor_parallel_size": lambda recipe, _: recipe.expert_tensor_parallel_size,
    "virtual_pipeline_model_parallel_size": lambda _, value: value if value and value > 1 else None,
    "recompute_granularity": _granularity,
    "recompute_modules": lambda _, value: ("core_attn",) if value is None else value,
    "microbatch_group_size_per_vp_stage": lambda recipe, value: (
        value or recipe.parallelism.pipeline_model_parallel_size
    ),
    "cp_comm_type": lambda _, value: value or "p2p",
    "grad_reduce_in_fp32": lambda recipe, value: value if value is not None else recipe.training.precision != "fp32",
    "cuda_graph_scope": lambda _, value: value or (),
}


def acts(recipe: Recipe, name: str) -> bool:
    """Whether the knob can have an effect beside the others, whatever its value."""
    return name not in ACTS_WHEN or ACTS_WHEN[name](recipe)


def effective(recipe: Recipe, name: str) -> Any:
    """The knob's value in its one spelling; its default where it cannot act. Lists are sorted, they are sets."""
    if not acts(recipe, name):
        return KNOBS[name].default
    value = recipe.knob(name)
    value = SPELLING[name](recipe, value) if name in SPELLING else value
    return sorted(set(value)) if isinstance(value, tuple) else value


def canonical(recipe: Recipe) -> dict[str, Any]:
    """Everything a measurement can depend on, as JSON types."""
    return {
        "architecture": recipe.architecture.model_dump(mode="json"),
        "gpu": recipe.cluster.gpu,
        "nodes": recipe.cluster.nodes,
        "world_size": recipe.world_size,
        "memory_limit_gib": recipe.memory_limit_gib,
        "engine": recipe.burst.engine,
        "launcher": recipe.burst.launcher,
        "knobs": {name: effective(recipe, name) for name in KNOBS},
    }


def digest_of(recipe: Recipe) -> str:
    text = json.dumps(canonical(recipe), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
