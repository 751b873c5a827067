"""The step-time estimate: its parts add up, knobs move it the way they must, and it says how far it can be trusted."""

import itertools
from typing import Any

import numpy as np
import pytest

from trainer.estimate.candidates import one, table
from trainer.estimate.held import held_parameters
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.memory.state import gathered_bytes
from trainer.estimate.time.constants import constants
from trainer.estimate.time.estimate import estimate_time, stages_of, time_of
from trainer.model.parameters import table_parameters
from trainer.recipe.load import load_recipe
from trainer.recipe.schema import Recipe

INSIDE = (  # parts that a step is made of; the others tell how much of it is communication, hidden or not
    *("compute_s", "recompute_s", "ep_exposed_s", "tp_exposed_s", "cp_exposed_s", "head_s", "host_s"),
    *("pp_exposed_s", "pp_bubble_s", "dp_exposed_s", "optimizer_s", "offload_exposed_s", "sync_s"),
)


def recipe_of(gpu: str = "h100", nodes: int = 8, model: str = "qwen3-30b-a3b", **knobs: Any) -> Recipe:
    plain = {
        "expert_model_parallel_size": 8,
        "expert_tensor_parallel_size": 1,
        "global_batch_size": 1024,
        "moe_grouped_gemm": True,
        "moe_permute_fusion": True,
        "moe_router_force_load_balancing": True,
        "use_distributed_optimizer": True,
    }
    data = {"name": "timed", "model": model, "cluster": {"gpu": gpu, "nodes": nodes}}
    return Recipe.model_validate(data).replace(plain | knobs)


def step_s(recipe: Recipe) -> float:
    return estimate_time(recipe).step_s


LAYOUTS = [
    {},
    {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 3},
    {"tensor_model_parallel_size": 2, "sequence_parallel": True, "context_parallel_size": 2},
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    {"overlap_moe_expert_parallel_comm": True, "expert_model_parallel_size": 32},
    {"precision": "fp8_current", "cuda_graph_impl": "transformer_engine"},
    {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"},
]


@pytest.mark.parametrize("knobs", LAYOUTS)
def test_parts_add_up_to_the_step(knobs: dict[str, Any]) -> None:
    found = estimate_time(recipe_of(**knobs))
    assert sum(found.by_part[name] for name in INSIDE) == pytest.approx(found.step_s)
    assert min(found.by_part.values()) >= 0


def test_tokens_and_flops_are_those_of_the_step() -> None:
    recipe = recipe_of()
    found = estimate_time(recipe)
    assert found.tokens_per_s_per_gpu == pytest.approx(1024 * 4096 / recipe.world_size / found.step_s)
    assert found.model_tflops_per_gpu == pytest.approx(found.tokens_per_s_per_gpu * 0.0230, rel=0.01)


def test_many_rows_at_once_are_what_each_is_alone() -> None:
    base = recipe_of()
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size", "recompute_granularity")
    rows = list(itertools.product((1, 2, 4), (1, 2, 4), (1, 2), (None, "selective", "full")))
    together = table(base, dict(zip(names, zip(*rows, strict=True), strict=True)))
    found = time_of(together).step_s
    alone = [time_of(one(together.recipe(row))).step_s[0] for row in range(len(rows))]
    np.testing.assert_allclose(found, alone)


@pytest.mark.parametrize("start", ["deepseek-v3-1024xh100", "cpu-moe-slow"])
def test_many_sets_of_constants_at_once_give_what_each_gives_alone(start: str) -> None:
    base = load_recipe(start)
    names = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "recompute_granularity")
    rows = table(
        base, dict(zip(names, zip((1, None, None), (2, None, "full"), (2, 2, None), strict=True), strict=True))
    )
    moved = {name: np.array([[value], [1.1 * value], [value]]) for name, value in constants().items()}
    moved["pp_time"][2] *= 2
    found = stages_of(rows, constants=moved)
    alone = [stages_of(rows, constants={name: float(each[k, 0]) for name, each in moved.items()}) for k in range(3)]
    np.testing.assert_allclose(found.step, [each.step for each in alone])
    np.testing.assert_allclose(found.work, [each.work for each in alone])
    np.testing.assert_array_equal(found.slowest, [each.slowest for each in alone])


def test_full_recompute_costs_about_a_forward_pass() -> None:
    again = recipe_of(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    assert 1.15 < step_s(again) / step_s(recipe_of()) < 1.5


def test_interleaving_shrinks_the_bubble() -> None:
    stages: dict[str, Any] = {"pipeline_model_parallel_size": 4, "global_batch_size": 128}
    recipes = recipe_of(**stages), recipe_of(**stages, virtual_pipeline_model_parallel_size=3)
    even = {"chunks_uneven": 0.0}  # the head makes one chunk longer than the others
    plain, chunks = (time_of(one(recipe), constants=even).by_part["pp_bubble_s"][0] for recipe in recipes)
    assert chunks == pytest.approx(plain / 3)


def test_chunks_of_an_interleaved_pipeline_wait_for_the_longest_of_every_round() -> None:
    """Splits 24 layers per rank into chunks: 18 + 6 and 6 + 18 take as long as 36 layers, 12 + 12 as long as 24."""
    stages: dict[str, Any] = {"pipeline_model_parallel_size": 2, "global_batch_size": 1024}

    def step_and_wait_s(layout: str) -> tuple[float, float]:
        split = one(recipe_of(**stages, pipeline_model_parallel_layout=layout))
        waited, not_waited = (time_of(split, constants={"chunks_uneven": ratio}).step_s[0] for ratio in (1.0, 0.0))
        return float(not_waited), float(waited - not_waited)

    even_step_s, even_wait_s = step_and_wait_s("Et*12|t*12|t*12|t*12L")
    uneven_step_s, uneven_wait_s = step_and_wait_s("Et*18|t*6|t*6|t*18L")
    assert uneven_step_s == pytest.approx(even_step_s, rel=0.05)
    assert even_wait_s < 0.1 * even_step_s
    assert uneven_wait_s == pytest.approx(even_wait_s + even_step_s / 2, rel=0.2)


def test_a_graph_of_the_whole_iteration_has_one_meaning_in_both_spellings() -> None:
    """Megatron-Core 0.16.1 says `local` with that scope, 0.18 and later have a word of their own."""
    newer = recipe_of(cuda_graph_impl="full_iteration")
    older = recipe_of(cuda_graph_impl="local", cuda_graph_scope=("full_iteration",))
    assert step_s(older) == pytest.approx(step_s(newer))
    assert step_s(newer) < step_s(recipe_of())


def test_expert_parallel_across_nodes_exposes_more_than_inside_one() -> None:
    inside, across = recipe_of(), recipe_of(expert_model_parallel_size=32)
    assert estimate_time(across).by_part["ep_exposed_s"] > 2 * estimate_time(inside).by_part["ep_exposed_s"]


FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
AGAIN: list[tuple[dict[str, Any], float]] = [
    ({}, 1.0),
    ({"recompute_granularity": "selective", "recompute_modules": ["moe"]}, 1.5),
    (FULL, 1.5),
    (FULL | {"recompute_method": "block"}, 1 + 0.5 / 32),
]


@pytest.mark.parametrize(("again", "times"), AGAIN)
def test_ranks_that_share_experts_pass_on_every_copy_of_a_token(again: dict[str, Any], times: float) -> None:
    """A layer's hidden states are sent twice without expert TP, and each of the two copies of a token twice more with
    it: again if the layer is recomputed."""
    split: dict[str, Any] = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "expert_model_parallel_size": 4,
    }

    def tp_s(size: int, knobs: dict[str, Any]) -> float:
        found = recipe_of(model="mixtral-8x7b", **split, expert_tensor_parallel_size=size, **knobs)
        return estimate_time(found).by_part["tp_s"]

    among = tp_s(2, {}) - tp_s(1, {})
    assert 1.5 < tp_s(2, {}) / tp_s(1, {}) < 3.0
    assert tp_s(2, again) - tp_s(1, again) == pytest.approx(times * among, rel=1e-6)


def test_a_busier_expert_rank_takes_its_load_longer_and_a_capacity_bounds_it() -> None:
    natural = recipe_of(expert_model_parallel_size=32, moe_router_force_load_balancing=False)
    even, uneven = (estimate_time(natural, imbalance=load).by_part for load in (1.0, 3.0))
    assert uneven["compute_s"] > 1.2 * even["compute_s"]
    assert uneven["ep_s"] > 2 * even["ep_s"]
    assert even["ep_s"] < estimate_time(natural).by_part["ep_s"] < uneven["ep_s"]
    bounded = natural.replace({"moe_expert_capacity_factor": 1.0})
    assert estimate_time(bounded, imbalance=3.0).step_s == pytest.approx(estimate_time(bounded, imbalance=1.0).step_s)
    forced = natural.replace({"moe_router_force_load_balancing": True})
    assert estimate_time(forced, imbalance=3.0).step_s == estimate_time(forced).step_s


def test_overlap_hides_part_of_dispatch_and_never_all() -> None:
    plain, hidden = (
        estimate_time(recipe_of(expert_model_parallel_size=32, overlap_moe_expert_parallel_comm=on)).by_part
        for on in (False, True)
    )
    assert plain["ep_exposed_s"] == plain["ep_s"]
    assert 0 < hidden["ep_exposed_s"] < plain["ep_exposed_s"]


def test_overlap_hides_nothing_of_a_single_micro_batch() -> None:
    single: dict[str, Any] = {"micro_batch_size": 16, "overlap_moe_expert_parallel_comm": True}  # 64 ranks
    parts = estimate_time(recipe_of(expert_model_parallel_size=32, **single)).by_part
    assert parts["ep_exposed_s"] == parts["ep_s"]


def test_dispatch_in_backward_hides_behind_the_weight_gradients_of_the_experts() -> None:
    on: dict[str, Any] = {"overlap_dispatch_backward_with_experts_wgrad": True}
    merged: dict[str, Any] = {"overlap_moe_expert_parallel_comm": True}
    plain, beside = (estimate_time(recipe_of(**knobs)).by_part for knobs in ({}, on))
    assert beside["ep_s"] == plain["ep_s"]
    assert 0.7 * plain["ep_exposed_s"] < beside["ep_exposed_s"] < 0.8 * plain["ep_exposed_s"]
    assert step_s(recipe_of(**merged, **on)) == step_s(recipe_of(**merged))


def test_an_all_gather_permutes_less_than_an_all_to_all() -> None:
    parts = [
        estimate_time(recipe_of(moe_token_dispatcher_type=kind)).by_part["compute_s"]
        for kind in ("allgather", "alltoall")
    ]
    assert parts[0] < parts[1]


def test_exchanging_heads_moves_less_than_the_ring_over_many_context_ranks() -> None:
    long: dict[str, Any] = {"seq_length": 131072, "context_parallel_size": 16, "global_batch_size": 64}
    ring = estimate_time(recipe_of(nodes=16, model="deepseek-v3", **long)).by_part
    dealt = estimate_time(recipe_of(nodes=16, model="deepseek-v3", **long, cp_comm_type="a2a")).by_part
    assert dealt["cp_s"] < ring["cp_s"] / 4
    assert dealt["cp_exposed_s"] == dealt["cp_s"]
    assert ring["cp_exposed_s"] < ring["cp_s"]
    levels: dict[str, Any] = {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": (8, 2)}
    both = estimate_time(recipe_of(nodes=16, model="deepseek-v3", **long, **levels)).by_part
    assert both["cp_exposed_s"] < dealt["cp_exposed_s"] < both["cp_s"] < ring["cp_s"]
    ends = {(16, 1): dealt["cp_s"], (1, 16): ring["cp_s"]}
    for sizes, alone in ends.items():
        levels["hierarchical_context_parallel_sizes"] = sizes
        assert estimate_time(recipe_of(nodes=16, model="deepseek-v3", **long, **levels)).by_part["cp_s"] == alone


def test_context_ranks_divide_the_heads_of_a_delta_net_and_not_the_chain_of_its_chunks() -> None:
    from trainer.estimate.time.layer_time import layer_time
    from trainer.measured.software import latest, releases

    def scan_s(**knobs: Any) -> float:
        rows = one(recipe_of("gb200", 8, "qwen3-next-80b-a3b", **knobs))
        layer = layer_time(rows, constants(), releases()[latest()], is_moe=True)
        plain = layer_time(rows, {**constants(), "scan_chunk_us": 0.0}, releases()[latest()], is_moe=True)
        return float(np.asarray(layer.attention - plain.attention))

    long = {"seq_length": 65536, "global_batch_size": 64}
    assert scan_s(seq_length=4096, global_batch_size=1024) == 0.0
    assert scan_s(**long) == 0.0
    few, many = (scan_s(context_parallel_size=cp, **long) for cp in (8, 16))
    assert 0 < few < many


def test_a_step_of_the_ring_hides_behind_as_much_attention_as_it_brings() -> None:
    """Models few query groups: the next keys and values arrive while attention runs on the current ones, from 4K tokens
    per rank on; shorter shares have less attention for each byte."""
    parts = {
        length: estimate_time(
            recipe_of(nodes=16, seq_length=16 * length, context_parallel_size=16, global_batch_size=64)
        ).by_part
        for length in (512, 8192)
    }
    assert parts[8192]["cp_exposed_s"] == pytest.approx(constants()["cp_exposed"] * parts[8192]["cp_s"])
    assert parts[512]["cp_exposed_s"] > 1.5 * constants()["cp_exposed"] * parts[512]["cp_s"]


def test_a_stage_with_more_layers_that_see_the_whole_sequence_attends_longer() -> None:
    """gpt-oss: every second layer sees a window. With chunks of three layers one rank has twice as many of the others,
    with chunks of two all have alike."""
    piped: dict[str, Any] = {"model": "gpt-oss-20b", "pipeline_model_parallel_size": 2, "overlap_p2p_comm": True}
    threes, twos = (
        stages_of(one(recipe_of(**piped, virtual_pipeline_model_parallel_size=chunks))) for chunks in (4, 6)
    )
    first, last = threes.parts["attention"][0]
    assert last > 1.5 * first
    assert first + last == pytest.approx(twos.parts["attention"].sum())
    assert twos.parts["attention"][0] == pytest.approx([(first + last) / 2] * 2)
    assert threes.busy[0, 0] < twos.busy[0, 0]


def test_an_output_projection_in_mxfp8_is_faster_and_keeps_copies_of_its_weight() -> None:
    base = recipe_of("gb200").replace({"precision": "mxfp8"})
    narrow = base.replace({"fp8_output_proj": True})
    assert step_s(narrow) < step_s(base)
    assert estimate_memory(narrow).peak_gib > estimate_memory(base).peak_gib
    bf16 = base.replace({"precision": "bf16"})
    assert step_s(bf16.replace({"fp8_output_proj": True})) == step_s(bf16)


def test_graphs_take_host_time_away() -> None:
    small: dict[str, Any] = {"model": "gpt-oss-20b", "seq_length": 1024, "global_batch_size": 512}
    eager = estimate_time(recipe_of(**small)).by_part["host_s"]
    partly = estimate_time(recipe_of(**small, cuda_graph_impl="transformer_engine")).by_part["host_s"]
    whole = estimate_time(recipe_of(**small, cuda_graph_impl="full_iteration")).by_part["host_s"]
    assert eager > partly > whole


def test_a_newer_release_is_not_slower() -> None:
    recipe = recipe_of("gb200", precision="mxfp8")
    assert estimate_time(recipe, release="26.06").step_s < estimate_time(recipe, release="25.11").step_s


def test_an_unknown_release_is_named() -> None:
    with pytest.raises(KeyError, match="1\\.0"):
        estimate_time(recipe_of(), release="1.0")


def test_what_no_published_run_has_widens_the_interval_and_is_said() -> None:
    known, unknown = estimate_time(recipe_of("h100")), estimate_time(recipe_of("h200"))
    assert unknown.spread > known.spread
    assert any("GPU h200" in text for text in unknown.assumptions)
    long = estimate_time(recipe_of(seq_length=1 << 20, context_parallel_size=8))
    assert long.spread > known.spread
    assert any("sequences above" in text for text in long.assumptions)


CPU_CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # faster, slower
    "no recompute": ({}, {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}),
    "fewer micro batches": ({"micro_batch_size": 4}, {"micro_batch_size": 1}),
    "no dispatch": ({"expert_model_parallel_size": 1}, {"expert_model_parallel_size": 2}),
    "no tensor parallel": ({}, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "threads": ({"threads_per_rank": 2}, {"threads_per_rank": 1}),
}


@pytest.mark.parametrize(("fast", "slow"), CPU_CHANGES.values(), ids=CPU_CHANGES)
def test_changes_that_made_cpu_ranks_faster_are_estimated_as_faster(fast: dict[str, Any], slow: dict[str, Any]) -> None:
    """Checks the signs of gains that bursts of cpu-moe showed; more threads gained only where cores were free."""
    recipe = load_recipe("cpu-moe").replace({"expert_tensor_parallel_size": 1})
    fast_s, slow_s = (estimate_time(recipe.replace(changes)).step_s for changes in (fast, slow))
    assert fast_s < 0.98 * slow_s


def test_no_more_of_pipeline_sends_is_hidden_than_a_stage_works() -> None:
    recipe = recipe_of(pipeline_model_parallel_size=4, virtual_pipeline_model_parallel_size=3, overlap_p2p_comm=True)
    quick, slow = (stages_of(one(recipe), constants={"pp_time": factor}) for factor in (1.0, 1000.0))
    assert quick.pp_exposed[0] == pytest.approx((1 - constants()["p2p_hidden"]) * quick.pp[0])
    assert slow.pp_exposed[0] == pytest.approx(slow.pp[0] - slow.busy.max())


@pytest.mark.parametrize("own_node", [True, False])
def test_neighbours_stretch_what_goes_between_nodes_by_its_cpu_time_only(own_node: bool) -> None:
    """Compares two ranks on two nodes, whose link the neighbours do not use, with two ranks on one node."""
    shape = {"nodes": 2, "gpus_per_node": 1} if own_node else {"nodes": 1, "gpus_per_node": 2}
    cpus = load_recipe("cpu-moe").replace({"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1})
    recipe = cpus.model_copy(update={"cluster": cpus.cluster.model_copy(update=shape)})
    calm, busy = (stages_of(one(recipe), constants={"cpu_stretch": by, "cpu_moved": 0.1}) for by in (1.0, 3.0))
    for parts, times in (("ep_exposed", 1.2 if own_node else 3.0), ("gemm", 3.0)):
        assert busy.parts[parts] == pytest.approx(times * calm.parts[parts])
    assert busy.dp_exposed == pytest.approx((1.2 if own_node else 3.0) * calm.dp_exposed)
    assert busy.optimizer == pytest.approx(3.0 * calm.optimizer)
    assert bool(busy.step[0] < 2.9 * calm.step[0]) is own_node
    assert busy.busy == pytest.approx(3 * calm.busy - 3 * calm.parts["ep_exposed"] + busy.parts["ep_exposed"])


def exposed_dp_s(**knobs: Any) -> float:
    overlapped: dict[str, Any] = {
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "use_distributed_optimizer": True,
    }
    return estimate_time(recipe_of(nodes=32, **overlapped | knobs)).by_part["dp_exposed_s"]


def test_small_buckets_expose_less_of_the_gradients_than_one() -> None:
    one_bucket, many = (exposed_dp_s(bucket_size=size) for size in (10**12, 10**7))
    assert many < 0.7 * one_bucket
    assert exposed_dp_s() > many  # by default a bucket grows with the replicas


def test_groups_between_the_last_passes_of_two_chunks_hide_their_gradients() -> None:
    chunks = {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 6}
    apart = exposed_dp_s(**chunks, microbatch_group_size_per_vp_stage=8)
    assert apart <= exposed_dp_s(**chunks) < exposed_dp_s(pipeline_model_parallel_size=4)


def test_experts_one_by_one_launch_more() -> None:
    grouped, apart = (estimate_time(recipe_of(moe_grouped_gemm=whether)).by_part["host_s"] for whether in (True, False))
    assert apart > grouped


def test_larger_groups_of_chunks_hide_sends() -> None:
    chunks: dict[str, Any] = {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 3}
    plain = recipe_of(**chunks)
    whole, exposed = (
        [
            getattr(stages_of(one(plain.replace({"microbatch_group_size_per_vp_stage": size}))), name)[0]
            for size in (4, 8)
        ]
        for name in ("pp", "pp_exposed")
    )
    assert whole[0] == whole[1]
    assert exposed[0] > exposed[1] == 0


@pytest.mark.parametrize(("precision", "gathers"), [("fp8_current", 0.5), ("mxfp8", 1.0)])
def test_quantized_weights_are_gathered_in_one_copy_and_those_of_mxfp8_in_16_bits(
    precision: str, gathers: float
) -> None:
    wide, narrow = (one(recipe_of("gb200", precision=precision, fp8_param_gather=on)) for on in (False, True))
    (dense, experts), (narrow_dense, narrow_experts) = (
        gathered_bytes(each, held_parameters(each)) for each in (wide, narrow)
    )
    assert (narrow_experts / experts).tolist() == [[gathers]]
    tables = 2 * 2 * table_parameters(wide.base.architecture, 1)  # embedding and output projection
    assert (narrow_dense >= tables + gathers * (dense - tables)).all()  # norms and router keep 16 bits too
    assert (narrow_dense <= dense).all()
