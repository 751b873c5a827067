"""Every knob moves the simulated step or its memory, or is listed as inert with the reason."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.policies.drawn import cpu_recipe
from trainer.engines.simulated.engine import memory_of
from trainer.engines.simulated.step import Simulation
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.machine import Host, Machine
from trainer.recipe.tables import read_table

# Bound by the device: a knob of the device must show
MACHINE = Machine(host=Host(gc_ms=50.0, launch=0.02))
BASE: dict[str, Any] = {
    "name": "p",
    "model": {
        "num_layers": 8,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "vocab_size": 32000,
        "num_moe_experts": 32,
        "moe_router_topk": 4,
        "moe_ffn_hidden_size": 1024,
        "moe_shared_expert_intermediate_size": 1024,
        "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 1],
        "multi_latent_attention": True,
        "q_lora_rank": 512,
        "kv_lora_rank": 256,
        "qk_head_dim": 96,
        "qk_pos_emb_head_dim": 32,
        "v_head_dim": 96,
    },
    "cluster": {"gpu": "b200", "nodes": 4},
    "training": {"seq_length": 8192, "global_batch_size": 128, "micro_batch_size": 2, "precision": "mxfp8"},
    "parallelism": {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "expert_model_parallel_size": 8,
        "expert_tensor_parallel_size": 1,
        "context_parallel_size": 2,
    },
    "knobs": {
        "sequence_parallel": True,
        "use_distributed_optimizer": True,
        "moe_grouped_gemm": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
    },
}
CONTEXTS: tuple[dict[str, Any], ...] = (
    {},
    {
        "virtual_pipeline_model_parallel_size": 2,
        "overlap_moe_expert_parallel_comm": True,
        "tensor_model_parallel_size": 1,
        "sequence_parallel": False,
    },
    {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ("attn",),
    },
    {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "deepep",
        "recompute_granularity": "selective",
        "recompute_modules": ("core_attn",),
    },
    {
        "fine_grained_activation_offloading": True,
        "offload_modules": ("core_attn",),
        "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": 0.5,
        "use_precision_aware_optimizer": True,
        "manual_gc": True,
        "manual_gc_interval": 50,
    },
    {
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": "optim_grads_params",
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        "cpu_offloading": True,
        "cpu_offloading_num_layers": 2,
    },
    {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "overlap_moe_expert_parallel_comm": True,
        "expert_model_parallel_size": 16,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "CUDA_DEVICE_MAX_CONNECTIONS": 1,
    },
    {
        "first_last_layers_bf16": True,
        "fp8_param_gather": True,
        "moe_expert_capacity_factor": 1.2,
        "num_distributed_optimizer_instances": 2,
    },
    {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": (2, 1)},
)
INERT = {row["knob"]: row["why"] for row in read_table("inert.csv", package="trainer.engines.simulated")}
# knob -> the context in which it is moved, and its new value
MOVES: dict[str, tuple[int, Any]] = {
    "seq_length": (0, 2),
    "global_batch_size": (0, 2),
    "micro_batch_size": (0, 4),
    "precision": (0, "fp32"),
    "tensor_model_parallel_size": (0, 4),
    "pipeline_model_parallel_size": (0, 4),
    "virtual_pipeline_model_parallel_size": (0, 2),
    "context_parallel_size": (0, 4),
    "expert_model_parallel_size": (0, 2),
    "expert_tensor_parallel_size": (0, 2),
    "sequence_parallel": (0, False),
    "pipeline_model_parallel_layout": (0, "Ett|tttttttL"),
    "num_layers_in_first_pipeline_stage": (0, 2),
    "num_layers_in_last_pipeline_stage": (0, 2),
    "account_for_loss_in_pipeline_split": (0, True),
    "microbatch_group_size_per_vp_stage": (1, 4),
    "overlap_p2p_comm": (1, True),
    "cp_comm_type": (0, "a2a"),
    "hierarchical_context_parallel_sizes": (8, (1, 2)),
    "tp_comm_overlap": (0, True),
    "num_distributed_optimizer_instances": (0, 2),
    "use_distributed_optimizer": (0, False),
    "overlap_grad_reduce": (0, False),
    "overlap_param_gather": (0, False),
    "bucket_size": (0, 2),
    "grad_reduce_in_fp32": (0, False),
    "nccl_ub": (0, True),
    "use_megatron_fsdp": (5, False),
    "data_parallel_sharding_strategy": (5, "no_shard"),
    "fsdp_double_buffer": (5, True),
    "use_precision_aware_optimizer": (0, True),
    "main_grads_dtype": (4, "bfloat16"),
    "main_params_dtype": (4, "float16"),
    "exp_avg_dtype": (4, "float16"),
    "exp_avg_sq_dtype": (4, "float16"),
    "store_param_remainders": (4, False),
    "optimizer_cpu_offload": (4, False),
    "overlap_cpu_optimizer_d2h_h2d": (4, True),
    "recompute_granularity": (0, "selective"),
    "recompute_modules": (3, ("moe_act",)),
    "recompute_method": (5, "block"),
    "recompute_num_layers": (5, 2),
    "cpu_offloading": (5, False),
    "cpu_offloading_num_layers": (5, 4),
    "fine_grained_activation_offloading": (4, False),
    "offload_modules": (4, ("attn_proj",)),
    "moe_token_dispatcher_type": (0, "allgather"),
    "moe_flex_dispatcher_backend": (2, "deepep"),
    "moe_deepep_num_sms": (3, 2),
    "moe_hybridep_num_sms": (2, 2),
    "moe_permute_fusion_into_hybridep": (2, True),
    "moe_expert_rank_capacity_factor": (0, 0.5),
    "moe_paged_stash": (0, True),
    "moe_grouped_gemm": (0, False),
    "moe_permute_fusion": (0, True),
    "moe_router_fusion": (0, True),
    "moe_router_dtype": (0, "fp64"),
    "moe_apply_probs_on_input": (0, True),
    "moe_shared_expert_overlap": (0, True),
    "overlap_moe_expert_parallel_comm": (0, True),
    "delay_wgrad_compute": (6, True),
    "ep_overlap_early_attn_memory_release": (1, True),
    "overlap_dispatch_backward_with_experts_wgrad": (0, True),
    "moe_expert_capacity_factor": (0, 0.5),
    "moe_pad_expert_input_to_capacity": (0, True),
    "moe_router_padding_for_quantization": (0, True),
    "moe_router_force_load_balancing": (0, True),
    "transformer_impl": (0, "local"),
    "attention_backend": (0, "unfused"),
    "cross_entropy_loss_fusion": (0, True),
    "cuda_graph_impl": (0, "local"),
    "cuda_graph_scope": (2, ("moe",)),
    "fp8_param_gather": (0, True),
    "reuse_grad_buf_for_mxfp8_param_ag": (7, True),
    "fp8_dot_product_attention": (0, True),
    "fp8_output_proj": (0, True),
    "first_last_layers_bf16": (0, True),
    "num_layers_at_start_in_bf16": (7, 2),
    "num_layers_at_end_in_bf16": (7, 2),
    "manual_gc": (0, True),
    "manual_gc_interval": (4, 2),
    "cpu_affinity": (0, "spread"),
    "CUDA_DEVICE_MAX_CONNECTIONS": (1, 1),
    "PYTORCH_CUDA_ALLOC_CONF": (0, "expandable_segments:True"),
    "optimizer_offload_fraction": (4, 1.0),
}


def base() -> Recipe:
    return Recipe.model_validate(BASE)


def seen(recipe: Recipe) -> tuple[Any, ...]:
    simulation = Simulation(recipe, MACHINE)
    memory = memory_of(simulation)
    return round(simulation.step_us, 3), memory.peak_gib, memory.outside_gib


@cache
def unmoved(context: int) -> tuple[Any, ...]:
    """Returns step time and memory of a context with no knob changed."""
    return seen(base().replace(CONTEXTS[context]))


def test_every_knob_is_moved_here_or_listed_as_inert() -> None:
    assert set(KNOBS) == {*MOVES, *INERT, "threads_per_rank", "account_for_embedding_in_pipeline_split"}
    assert all(INERT.values())


@pytest.mark.parametrize("name", MOVES)
def test_a_knob_acts(name: str) -> None:
    context, value = MOVES[name]
    recipe = base().replace(CONTEXTS[context])
    assert seen(recipe.replace({name: value})) != unmoved(context)


def test_an_embedding_counted_as_a_layer_moves_a_layer() -> None:
    model = base().architecture.model_copy(update={"num_layers": 7, "moe_layer_freq": 1})
    recipe = base().model_copy(update={"model": model})
    assert seen(recipe.replace({"account_for_embedding_in_pipeline_split": True})) != seen(recipe)


def test_threads_act_on_cpus() -> None:
    one, two = (Simulation(cpu_recipe({"threads_per_rank": threads}), Machine()).step_us for threads in (1, 2))
    assert two < one


@pytest.mark.parametrize("name", [name for name in INERT if KNOBS[name].domain.kind == "bool"])
def test_an_inert_knob_does_nothing(name: str) -> None:
    assert seen(base().replace({name: not base().knob(name)})) == unmoved(0)
