"""The memory estimate: published figures it reproduces, and which way each setting moves it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rows import filled
from trainer.engines.simulated.memory import simulate_memory
from trainer.estimate.candidates import one, table
from trainer.estimate.held import held_parameters
from trainer.estimate.memory.estimate import MemoryEstimate, estimate_memory, memory_of
from trainer.estimate.memory.state import state_bytes
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.machine import Machine
from trainer.recipe.rules.examples import FULL, recipe_of
from trainer.recipe.rules.rule import Example
from trainer.recipe.sections import Cluster


def estimate(**knobs: Any) -> MemoryEstimate:
    return estimate_memory(recipe_of(Example(knobs=knobs)))


def deepseek_v3() -> Recipe:
    """Returns PP4 · VPP4 · EP64 on 256 GPUs in bf16: table 3 of arXiv 2603.07685."""
    return Recipe.model_validate(
        {
            "name": "table-3",
            "model": "deepseek-v3",
            "cluster": {"gpu": "gb200", "nodes": 64},
            "training": {"global_batch_size": 2048},
            "parallelism": {
                "pipeline_model_parallel_size": 4,
                "virtual_pipeline_model_parallel_size": 4,
                "expert_model_parallel_size": 64,
            },
            "knobs": {
                "pipeline_model_parallel_layout": "Et*4|(t*4|)*14tmL",
                "use_distributed_optimizer": True,
                "moe_router_force_load_balancing": True,  # as in the published throughputs
            },
        }
    )


def test_the_published_breakdown_of_deepseek_v3_is_reproduced() -> None:
    found = estimate_memory(deepseek_v3())
    assert found.peak_gib == pytest.approx(199.5, rel=0.05)
    assert found.by_part["activations"] == pytest.approx(131.0, rel=0.1)


def test_the_parts_add_up_and_the_upper_bound_is_above() -> None:
    found = estimate()
    assert sum(found.by_part.values()) == pytest.approx(found.peak_gib)
    assert found.upper_gib > found.peak_gib
    assert found.assumptions


def test_six_and_twelve_bytes_a_parameter_in_bf16() -> None:
    parts = estimate(use_distributed_optimizer=False).by_part
    assert parts["gradients"] == pytest.approx(2 * parts["weights"])
    assert parts["master_weights"] == pytest.approx(2 * parts["weights"])
    assert parts["optimizer"] == pytest.approx(4 * parts["weights"])


def test_four_four_and_eight_bytes_a_parameter_in_fp32() -> None:
    parts = estimate(use_distributed_optimizer=False, precision="fp32").by_part
    assert parts["gradients"] == pytest.approx(parts["weights"])
    assert parts["optimizer"] == pytest.approx(2 * parts["weights"])


PRECISE = {"use_precision_aware_optimizer": True}
LOW_MOMENTS = PRECISE | {"exp_avg_dtype": "bfloat16", "exp_avg_sq_dtype": "bfloat16"}
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ("moe_act",)}
OFFLOAD = PRECISE | {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}


@pytest.mark.parametrize(
    ("more", "less", "part"),
    [
        ({"use_distributed_optimizer": False}, {}, "optimizer"),
        (PRECISE, LOW_MOMENTS, "optimizer"),
        (PRECISE, OFFLOAD, "optimizer"),
        ({"expert_model_parallel_size": 4}, {"expert_model_parallel_size": 8}, "weights"),
        (
            {},
            {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_model_parallel_size": 4},
            "activations",
        ),
        ({}, {"context_parallel_size": 2}, "activations"),
        ({"micro_batch_size": 2}, {}, "activations"),
        ({}, SELECTIVE, "activations"),
        (SELECTIVE, FULL, "activations"),
        ({}, {"precision": "fp8_current"}, "activations"),
        ({"cross_entropy_loss_fusion": True}, {}, "logits"),  # the compiled fusion does not work in place
        ({}, {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}, "logits"),
        ({}, {"pipeline_model_parallel_size": 2}, "weights"),
        (
            {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
            {"pipeline_model_parallel_size": 2},
            "activations",
        ),
        ({}, {"fine_grained_activation_offloading": True, "offload_modules": ("moe_act",)}, "activations"),
        ({}, {"cpu_offloading": True, "cpu_offloading_num_layers": 4}, "activations"),
    ],
)
def test_a_setting_moves_its_part_the_right_way(more: dict[str, Any], less: dict[str, Any], part: str) -> None:
    assert estimate(**less).by_part[part] < estimate(**more).by_part[part]


def test_full_recompute_of_a_block_keeps_the_other_layers_whole() -> None:
    block = {"recompute_granularity": "full", "recompute_method": "block"}
    few, many = estimate(**block, recompute_num_layers=2), estimate(**block, recompute_num_layers=6)
    assert many.peak_gib < few.peak_gib < estimate().peak_gib


def test_forced_balance_needs_no_room_for_hot_experts() -> None:
    assert estimate(moe_router_force_load_balancing=True).upper_gib < estimate().upper_gib


def test_the_hottest_pipeline_rank_is_named() -> None:
    assert estimate_memory(deepseek_v3()).hottest == {"pp_rank": 0}


def test_the_packaged_example_needs_less_than_one_gib() -> None:
    assert 0.05 < estimate_memory(load_recipe("cpu-moe")).peak_gib < 1.0


sizes = st.sampled_from([1, 2, 3, 4, 8, 16, 32])


@settings(max_examples=25)
@given(tp=sizes, pp=sizes, cp=sizes, ep=sizes, vpp=sizes, mbs=sizes, granularity=st.sampled_from([None, *"sf"]))
def test_any_layout_has_an_estimate_legal_or_not(
    tp: int, pp: int, cp: int, ep: int, vpp: int, mbs: int, granularity: str | None
) -> None:
    rungs: dict[str | None, dict[str, Any]] = {None: {}, "s": SELECTIVE, "f": FULL}
    found = estimate(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        virtual_pipeline_model_parallel_size=vpp,
        micro_batch_size=mbs,
        **rungs[granularity],
    )
    assert 0 < found.peak_gib <= found.upper_gib


def test_a_table_holds_what_each_of_its_recipes_gets_alone() -> None:
    base = deepseek_v3()
    columns: dict[str, list[Any]] = {
        "expert_model_parallel_size": [64, 32, 16, 64],
        "tensor_model_parallel_size": [1, 2, 4, 1],
        "sequence_parallel": [False, True, True, False],
        "recompute_granularity": [None, "selective", "full", "full"],
        "recompute_modules": [None, ("mla_up_proj", "moe_act"), None, None],
        "recompute_method": [None, None, "uniform", "block"],
        "recompute_num_layers": [None, None, 1, 3],
        "precision": ["bf16", "mxfp8", "bf16", "bf16"],
    }
    rows = table(base, columns)
    together = memory_of(rows)
    for row in filled(range(rows.count)):
        alone = estimate_memory(rows.recipe(row))
        assert together.peak_gib[row] == pytest.approx(alone.peak_gib)
        assert together.upper_gib[row] == pytest.approx(alone.upper_gib)
        assert {"pp_rank": together.hottest[row]} == alone.hottest
        for name, size in alone.by_part.items():
            assert together.by_part[name][row, together.hottest[row]] == pytest.approx(size), name


def test_a_larger_imbalance_moves_the_bound_and_not_the_point() -> None:
    natural = deepseek_v3().replace({"moe_router_force_load_balancing": False})
    even, uneven = (memory_of(one(natural), imbalance=ratio) for ratio in (1.0, 2.0))
    assert even.peak_gib == uneven.peak_gib
    assert even.upper_gib < uneven.upper_gib


def test_what_was_never_measured_widens_the_bound_and_is_said() -> None:
    recipes = (deepseek_v3(), deepseek_v3().replace({"precision": "nvfp4"}))
    known, unknown = (estimate_memory(recipe, imbalance=1.0) for recipe in recipes)
    assert unknown.upper_gib / unknown.peak_gib > known.upper_gib / known.peak_gib
    assert any("nvfp4" in said for said in unknown.assumptions)
    assert not any("nvfp4" in said for said in known.assumptions)


def test_an_expert_capacity_bounds_the_imbalance() -> None:
    natural = deepseek_v3().replace({"moe_router_force_load_balancing": False})
    capped = memory_of(one(natural.replace({"moe_expert_capacity_factor": 1.1})))
    assert capped.peak_gib < memory_of(one(natural)).peak_gib
    assert capped.upper_gib < memory_of(one(natural)).upper_gib


def test_the_optimizer_step_counts_where_activations_are_small() -> None:
    tiny = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    fp32, bf16 = (estimate(grad_reduce_in_fp32=wide, **tiny).by_part for wide in (True, False))
    assert bf16["gradients"] == pytest.approx(fp32["gradients"] / 2)
    assert bf16["workspace"] >= fp32["workspace"]


def test_splitting_saved_inputs_over_tensor_ranks_keeps_less() -> None:
    tensor = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4, **FULL}
    whole, split = (estimate(distribute_saved_activations=over, **tensor) for over in (False, True))
    assert split.by_part["activations"] < whole.by_part["activations"]


def test_an_uneven_first_chunk_weighs_more_than_an_even_share() -> None:
    """Ranks hold most micro batches of their first chunk, so the same layers cost more there than in the last."""
    layouts = ("Et*5|(t*3|)*14tmL", "Et*3|t*3|t*3|t*3|(t*3|)*8t*5|t*3|t*3|tmL")
    first, last = (
        memory_of(one(deepseek_v3().replace({"pipeline_model_parallel_layout": layout}))) for layout in layouts
    )
    assert first.by_part["weights"].sum() == pytest.approx(last.by_part["weights"].sum())
    assert first.by_part["activations"][0, 0] > last.by_part["activations"][0, 0]


def test_blackwell_keeps_one_copy_of_weights_with_one_scale() -> None:
    def weights(gpu: str, precision: str) -> float:
        recipe = deepseek_v3().model_copy(update={"cluster": Cluster(gpu=gpu, nodes=64, gpus_per_node=4)})
        return estimate_memory(recipe.replace({"precision": precision})).by_part["weights"]

    assert weights("gb200", "fp8_current") < weights("h100", "fp8_current")
    assert weights("gb200", "mxfp8") == weights("h100", "fp8_current")


def test_only_linear_layers_between_embedding_and_head_are_kept_in_fp8() -> None:
    wide, narrow = (deepseek_v3().replace({"precision": "mxfp8", "fp8_param_gather": on}) for on in (False, True))
    held = held_parameters(one(wide))
    weights = [state_bytes(one(recipe), held)["weights"] for recipe in (wide, narrow)]
    assert weights[0] - weights[1] == pytest.approx(2 * held.linear)
    tables = 2 * wide.architecture.vocab_size * wide.architecture.hidden_size
    assert weights[1].sum() - 2 * held.linear.sum() > 2 * tables  # in addition, two copies of one byte


def qwen3_235b(*, pp: int, vpp: int | None = None, layout: str | None = None) -> Recipe:
    """Returns 94 layers, with embedding and loss counted as two more unless a layout is given."""
    return Recipe.model_validate(
        {
            "name": "uneven",
            "model": "qwen3-235b-a22b",
            "cluster": {"gpu": "gb200", "nodes": 64},
            "training": {"global_batch_size": 2048},
            "parallelism": {
                "pipeline_model_parallel_size": pp,
                "virtual_pipeline_model_parallel_size": vpp,
                "expert_model_parallel_size": 32,
            },
            "knobs": {
                "use_distributed_optimizer": True,
                "moe_router_force_load_balancing": True,
                **({"pipeline_model_parallel_layout": layout} if layout else COUNTED),
            },
        }
    )


COUNTED = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
UNEVEN = {  # layout -> PP
    "Ett|(tt|)*30(t|)*32L": 8,
    "Et|(t|)*14(tt|)*15t*25|t*25L": 8,
    "Et*3|(t*3|)*30tL": 4,
}


@pytest.mark.parametrize(
    "recipe",
    [
        *(qwen3_235b(pp=pp, vpp=vpp) for pp, vpp in ((4, 6), (8, 3), (8, 4), (2, 8))),
        *(qwen3_235b(pp=pp, layout=layout) for layout, pp in UNEVEN.items()),
    ],
    ids=lambda recipe: recipe.knob("pipeline_model_parallel_layout") or "counted",
)
def test_uneven_chunks_hold_what_the_simulated_schedule_holds(recipe: Recipe) -> None:
    """Compares every pipeline rank with the simulation, which counts allocation by allocation and shares no formula."""
    played = simulate_memory(recipe, Machine.model_validate({"memory": {"fragmentation": 0.0}})).allocated_gib
    estimated = sum(memory_of(one(recipe)).by_part.values(), np.zeros(1))[0]
    assert estimated == pytest.approx(played, rel=0.015)


def test_a_sharded_optimizer_saves_less_on_cpus_than_its_copies_take() -> None:
    recipe = load_recipe("cpu-moe")
    whole, sharded = (
        estimate_memory(recipe.replace({"use_distributed_optimizer": on})).peak_gib for on in (False, True)
    )
    assert sharded > whole
