"""Memory of the simulated cluster: what is allocated is freed, every knob acts, a tiny model is exact to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.published_memory import deepseek_v3
from tests.rows import filled
from trainer.burst import BurstPhase
from trainer.engines.simulated.memory import OutOfMemory, SimulatedMemory, simulate_memory, usual_imbalance
from trainer.engines.simulated.memory.simulate import shortened
from trainer.engines.simulated.memory.sizes import Sizes
from trainer.engines.simulated.memory.tape import Modules, Op, Policy, Tape, Tensor, simulate_layer
from trainer.engines.simulated.schedule import schedule_of
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.machine import Machine
from trainer.recipe.rules.examples import FULL
from trainer.recipe.tables import read_table

MACHINE = Machine()
PLAIN = Machine.model_validate({"memory": {"fragmentation": 0.0}})
GIB, MIB = 2**30, 2**20
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)}
FSDP = {
    "use_megatron_fsdp": True,
    "data_parallel_sharding_strategy": "optim_grads_params",
    "pipeline_model_parallel_size": 1,
    "pipeline_model_parallel_layout": None,
}
AWARE = {"use_precision_aware_optimizer": True, "store_param_remainders": False}
OFFLOAD = {"fine_grained_activation_offloading": True, "offload_modules": ("core_attn", "attn_proj", "expert_fc1")}
CAPACITY: dict[str, Any] = {"moe_expert_rank_capacity_factor": 4.0, "use_transformer_engine_op_fuser": True}
OVERLAP = {"overlap_moe_expert_parallel_comm": True}
UNEVEN = {"pipeline_model_parallel_layout": None, "pipeline_model_parallel_size": 4}
TP2 = {"tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 1}

# knob -> (other settings, its value)
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "seq_length": ({}, 8192),
    "micro_batch_size": ({}, 2),
    "precision": ({}, "mxfp8"),
    "tensor_model_parallel_size": ({"sequence_parallel": True, "expert_tensor_parallel_size": 1}, 2),
    "pipeline_model_parallel_size": (UNEVEN, 2),
    "virtual_pipeline_model_parallel_size": (UNEVEN, 3),
    "context_parallel_size": ({}, 2),
    "expert_model_parallel_size": ({}, 32),
    "expert_tensor_parallel_size": ({"expert_model_parallel_size": 32}, 2),
    "sequence_parallel": (TP2, True),
    "pipeline_model_parallel_layout": ({}, "Et*8|(t*4|)*13ttmL"),
    "num_layers_in_first_pipeline_stage": (UNEVEN, 13),
    "num_layers_in_last_pipeline_stage": (UNEVEN, 13),
    "account_for_embedding_in_pipeline_split": (UNEVEN, True),
    "account_for_loss_in_pipeline_split": (UNEVEN, True),
    "microbatch_group_size_per_vp_stage": ({}, 8),
    "num_distributed_optimizer_instances": ({}, 2),
    "use_distributed_optimizer": ({}, False),
    "grad_reduce_in_fp32": ({}, False),
    "use_megatron_fsdp": ({"data_parallel_sharding_strategy": "optim_grads_params"}, True),
    "data_parallel_sharding_strategy": (FSDP, "optim"),
    "fsdp_double_buffer": (FSDP, True),
    "use_precision_aware_optimizer": ({}, True),
    "main_grads_dtype": (AWARE, "bfloat16"),
    "main_params_dtype": (AWARE, "float16"),
    "exp_avg_dtype": (AWARE, "bfloat16"),
    "exp_avg_sq_dtype": (AWARE, "bfloat16"),
    "store_param_remainders": (AWARE, True),
    "optimizer_cpu_offload": ({"optimizer_offload_fraction": 0.5}, True),
    "optimizer_offload_fraction": ({"optimizer_cpu_offload": True}, 1.0),
    "recompute_granularity": ({}, "full"),
    "recompute_modules": (SELECTIVE, ("moe_act",)),
    "recompute_method": (FULL, "block"),
    "recompute_num_layers": (FULL, 4),
    "distribute_saved_activations": (FULL | TP2, True),
    "cpu_offloading": ({"cpu_offloading_num_layers": 2}, True),
    "cpu_offloading_num_layers": ({"cpu_offloading": True}, 2),
    "fine_grained_activation_offloading": ({"offload_modules": ("core_attn",)}, True),
    "offload_modules": (OFFLOAD, ("qkv_linear",)),
    "fine_grained_offloading_max_inflight_offloads": (OFFLOAD, 0),
    "moe_expert_rank_capacity_factor": ({}, 4.0),
    "moe_paged_stash": (CAPACITY, True),
    "moe_apply_probs_on_input": ({}, True),
    "ep_overlap_early_attn_memory_release": (OVERLAP, True),
    "moe_expert_capacity_factor": ({"moe_pad_expert_input_to_capacity": True}, 2.0),
    "transformer_impl": ({}, "local"),
    "attention_backend": ({}, "unfused"),
    "cross_entropy_loss_fusion": ({}, True),
    "cross_entropy_fusion_impl": ({"cross_entropy_loss_fusion": True}, "te"),
    "fp8_param_gather": ({"precision": "fp8_blockwise"}, True),
    "reuse_grad_buf_for_mxfp8_param_ag": ({"precision": "mxfp8", "fp8_param_gather": True}, True),
    "PYTORCH_CUDA_ALLOC_CONF": ({}, "expandable_segments:True"),
    "NCCL_NVLS_ENABLE": ({}, 0),
    "TORCH_NCCL_AVOID_RECORD_STREAMS": ({}, 0),
    # knobs of other walls that take memory too
    "overlap_moe_expert_parallel_comm": ({}, True),
    "delay_wgrad_compute": (OVERLAP, True),
    "overlap_p2p_comm": ({}, True),
    "tp_comm_overlap": ({"sequence_parallel": True} | TP2, True),
    "moe_token_dispatcher_type": ({}, "allgather"),
    "moe_flex_dispatcher_backend": ({"moe_token_dispatcher_type": "flex"}, "hybridep"),
    "moe_deepep_num_sms": ({"moe_token_dispatcher_type": "flex"}, 24),
    "moe_grouped_gemm": ({}, False),
    "moe_router_fusion": ({}, True),
    "moe_router_dtype": ({}, "fp64"),
    "moe_pad_expert_input_to_capacity": ({"moe_expert_capacity_factor": 2.0}, True),
    "cuda_graph_impl": ({"cuda_graph_scope": ("attn",)}, "transformer_engine"),
    "cuda_graph_scope": ({"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn",)}, ("moe_router",)),
    "fp8_dot_product_attention": ({"precision": "mxfp8"}, True),
    "fp8_output_proj": ({"precision": "mxfp8"}, True),
    "first_last_layers_bf16": ({"precision": "mxfp8"}, True),
    "use_transformer_engine_op_fuser": (OFFLOAD, True),
}
INERT = {
    "bucket_size": "buckets are views of one buffer",
    "overlap_cpu_optimizer_d2h_h2d": "copies to and from the host need no more of the device",
    "NCCL_GRAPH_REGISTER": "registers buffers that exist",
    "NVTE_CPU_OFFLOAD_V1": "which code offloads, not what",
}
INERT |= {  # the same reasons hold for the step
    row["knob"]: row["why"]
    for row in read_table("inert.csv", package="trainer.engines.simulated")
    if "memory" in KNOBS[row["knob"]].walls and row["knob"] not in CHANGES
}


def play(recipe: Recipe, *, machine: Machine = PLAIN, imbalance: float | None = None) -> SimulatedMemory:
    return simulate_memory(recipe, machine, imbalance=imbalance)


def figures(recipe: Recipe) -> tuple[Any, ...]:
    found = play(recipe, machine=MACHINE, imbalance=1.1)
    return found.peak_gib, found.allocated_gib, found.state_gib, found.outside_gib


def tiny(**knobs: Any) -> Recipe:
    """Returns one MoE layer, 16 tokens."""
    return Recipe.model_validate(
        {
            "name": "tiny",
            "model": {
                "num_layers": 1,
                "hidden_size": 8,
                "num_attention_heads": 2,
                "vocab_size": 32,
                "num_moe_experts": 2,
                "moe_router_topk": 1,
                "moe_ffn_hidden_size": 16,
            },
            "cluster": {"gpu": "h100", "nodes": 1, "gpus_per_node": 1},
            "training": {"seq_length": 16, "global_batch_size": 1},
            "knobs": knobs,
        }
    )


def test_a_tiny_model_is_exact_to_the_byte() -> None:
    [rank] = play(tiny()).ranks
    tables, attention, norms, router, experts = 2 * 256, 192 + 64, 3 * 8, 16, 2 * 3 * 8 * 16
    assert rank.state.all == (tables + attention + norms + router + experts) * (2 + 4 + 4 + 8)
    assert rank.always == (32 + 64) * MIB
    embedding = 16 * 8
    attention = 256 + 256 + 64 + 768 + 256 + 128  # input, its norm and statistics, qkv, output, log-sum-exp
    moe = 256 + 64 + 256 + 416 + 256  # residual, statistics, norm, router, maps
    experts = 256 + 1024 + 64 + 512  # tokens, gate and up, probabilities, activation
    norm = 256 + 64
    loss = 256 + 1024 + 2048 + 64  # normed, logits, softmax in fp32, loss
    assert rank.passes == embedding + attention + moe + experts + norm + loss
    assert rank.allocated == rank.needed == rank.state.all + rank.always + rank.passes
    assert rank.resting == rank.state.all + rank.always


@pytest.mark.parametrize(
    "changes",
    [{}, FULL, SELECTIVE, OFFLOAD, OVERLAP, {"cuda_graph_impl": "transformer_engine"}, {"precision": "mxfp8"}],
)
def test_what_a_step_allocates_it_frees(changes: dict[str, Any]) -> None:
    for rank in filled(play(deepseek_v3().replace(changes)).ranks):
        assert rank.left == pytest.approx(0, abs=1)
        assert rank.peaks.min() > 0


def test_micro_batches_beyond_the_steady_state_change_nothing() -> None:
    for changes in ({}, OVERLAP, UNEVEN):
        recipe = deepseek_v3().replace(changes)
        schedule = schedule_of(recipe)
        few = recipe.replace({"global_batch_size": 64 * 16})
        assert shortened(schedule).microbatches < schedule.microbatches
        assert play(few).peak_gib == pytest.approx(play(recipe).peak_gib)


@pytest.mark.parametrize(("name", "change"), CHANGES.items())
def test_a_knob_that_takes_or_gives_memory_acts(name: str, change: tuple[dict[str, Any], Any]) -> None:
    beside, value = change
    base = deepseek_v3(moe_router_force_load_balancing=False).replace(beside)
    assert figures(base.replace({name: value})) != figures(base)


def test_every_knob_of_the_memory_wall_acts_or_says_why_not() -> None:
    of_memory = {name for name, knob in KNOBS.items() if "memory" in knob.walls and name != "global_batch_size"}
    assert of_memory - CHANGES.keys() == INERT.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"recompute_granularity": "selective", "recompute_modules": ("mla_up_proj",)},
        {"recompute_granularity": "selective", "recompute_modules": ("moe_act",)},
        {"recompute_granularity": "selective", "recompute_modules": ("layernorm",)},
        {"recompute_granularity": "selective", "recompute_modules": ("shared_experts",)},
        {"recompute_granularity": "selective", "recompute_modules": ("moe",)},
        {"recompute_granularity": "selective", "recompute_modules": ("mlp",)},
        FULL,
        OFFLOAD,
        {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5},
        {"grad_reduce_in_fp32": False},
        {"use_precision_aware_optimizer": True},
        {"context_parallel_size": 2},
    ],
)
def test_what_saves_memory_saves_it_on_the_first_rank(changes: dict[str, Any]) -> None:
    base = deepseek_v3()
    assert play(base.replace(changes)).peak_gib[0] < play(base).peak_gib[0]


def test_more_expert_parallelism_holds_fewer_experts() -> None:
    states = [max(play(deepseek_v3(ep=ep)).state_gib) for ep in (16, 32, 64)]
    assert states == sorted(states, reverse=True)


def test_hotter_experts_take_more_up_to_their_capacity() -> None:
    recipe = deepseek_v3()
    even, hot, hotter = (play(recipe, imbalance=load).peak_gib[0] for load in (1.0, 1.5, 2.0))
    assert even < hot < hotter
    capped = recipe.replace({"moe_expert_capacity_factor": 1.5})
    assert play(capped, imbalance=2.0).peak_gib[0] == pytest.approx(hot)


def test_the_paged_stash_keeps_what_came_and_not_what_could_have() -> None:
    allotted = deepseek_v3(**CAPACITY)
    stashed = allotted.replace({"moe_paged_stash": True})
    assert play(allotted).peak_gib[0] - play(stashed).peak_gib[0] > 50


def test_forced_balance_is_even_and_a_machines_routing_is_not() -> None:
    assert set(usual_imbalance(deepseek_v3(), MACHINE)) == {1.0}
    free = usual_imbalance(deepseek_v3(moe_router_force_load_balancing=False), MACHINE)
    assert all(1 < load < 1.5 for load in free)


def test_deepseek_v3_holds_what_was_published() -> None:
    """Compares a middle rank with arXiv 2603.07685 table 3, less the 26.3 GiB of expert outputs that it keeps there."""
    rank = play(deepseek_v3()).ranks[2]
    assert (rank.state.weights + rank.state.gradients) / GIB == pytest.approx(36.4, rel=0.02)
    assert (rank.state.masters + rank.state.moments) / GIB == pytest.approx(32.1, rel=0.02)
    assert rank.passes / GIB + 26.3 == pytest.approx(131.0, rel=0.03)


def fault(recipe: Recipe, limit_gib: float) -> OutOfMemory:
    found = play(recipe).out_of_memory(limit_gib)
    assert found is not None
    assert found.needed_gib > limit_gib
    return found


def test_a_model_that_does_not_fit_fails_as_it_is_built() -> None:
    found = fault(deepseek_v3(), 40.0)
    assert (found.phase, found.step) == (BurstPhase.INIT, 0)


def test_activations_fail_in_the_passes_of_the_first_step() -> None:
    found = fault(deepseek_v3(), 120.0)
    assert (found.phase, found.step, found.pipeline_rank) == (BurstPhase.FORWARD, 0, 0)


def test_optimizer_state_fails_in_the_first_optimizer_step() -> None:
    recipe = deepseek_v3(**FULL)
    rank = max(play(recipe).ranks, key=lambda rank: rank.state.all)
    built, whole = rank.state.built / GIB, rank.state.all / GIB
    assert rank.passes < rank.state.moments
    found = fault(recipe, (max(built + rank.passes / GIB, whole - 4) + whole) / 2)
    assert (found.phase, found.step) == (BurstPhase.OPTIMIZER, 0)


def test_a_run_near_the_limit_fails_in_the_second_step() -> None:
    recipe = deepseek_v3()
    found = fault(recipe, max(play(recipe).peak_gib) + play(recipe).outside_gib - 0.1)
    assert found.step == 1
    late = Machine.model_validate({"memory": {"second_step_gib": 5.0}})
    assert max(play(recipe, machine=late).peak_gib) > max(play(recipe, machine=PLAIN).peak_gib) + 4.9


def test_no_limit_and_a_wide_one_hold_everything() -> None:
    recipe = deepseek_v3()
    assert play(recipe).out_of_memory(None) is None
    assert play(recipe).out_of_memory(max(play(recipe).peak_gib) + play(recipe).outside_gib) is None


def test_a_machine_moves_activations_fragmentation_and_memory_outside_the_allocator() -> None:
    recipe = deepseek_v3()
    base = play(recipe)
    more = Machine.model_validate({"memory": {"activations": 1.1, "fragmentation": 0.0, "outside_gib": 2.0}})
    assert play(recipe, machine=more).ranks[0].passes == pytest.approx(1.1 * base.ranks[0].passes)
    assert play(recipe, machine=more).outside_gib == pytest.approx(base.outside_gib + 2)
    assert play(recipe, machine=MACHINE).peak_gib[0] == pytest.approx(base.peak_gib[0] / 0.97)


def two_linears() -> Tape:
    """Returns x (10) → hidden (100) → y (10): hidden can be recomputed, x can be offloaded."""
    tape = Tape(first="x")
    tape.tensor("x", Tensor(10, 10, Modules(offload="attn_norm")))
    tape.tensor("hidden", Tensor(100, 100, Modules(recompute=("mlp",))))
    tape.tensor("y", Tensor(10, 10))
    tape.op(Op(reads=("x",), writes=("hidden",), saves=("x",)))
    tape.op(Op(reads=("hidden",), writes=("y",), saves=("hidden",), backward=5))
    return tape


def test_a_tape_is_played_as_autograd_does_it() -> None:
    kept = simulate_layer(two_linears(), Policy())
    assert kept.left_over == 0
    assert (kept.forward, kept.kept, kept.backward) == (120, 110, 10 + 110 + 100 + 5)
    again = simulate_layer(two_linears(), Policy(recomputed=frozenset(("mlp",))))
    assert (again.forward, again.kept, again.backward) == (120, 10, kept.backward)
    moved = simulate_layer(two_linears(), Policy(offloaded=frozenset(("attn_norm",))))
    assert (moved.kept, moved.moved, moved.groups) == (100, 10, (10,))


def test_hybrid_layers_play_their_own_tensors() -> None:
    hybrid = Recipe.model_validate(
        {
            "name": "hybrid",
            "model": "nemotron-3-nano-30b-a3b",
            "cluster": {"gpu": "h100"},
            "burst": {"engine": "simulated"},
        }
    )
    delta = Recipe.model_validate({"name": "delta", "model": "qwen3-next-80b-a3b", "cluster": {"gpu": "h100"}})
    for recipe in (hybrid, delta):
        [rank] = play(recipe).ranks
        assert rank.left == pytest.approx(0, abs=1)
        assert rank.passes > Sizes(recipe=recipe, load=1.0, quantized=False).hidden * recipe.architecture.num_layers
