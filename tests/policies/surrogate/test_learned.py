"""The section `estimate` of a machine file moves the closed forms, and widens their intervals."""

from __future__ import annotations

import pytest

from policies.surrogate.factors import move_constants
from policies.surrogate.learned import learned_cluster, lesson_of_file, unknown_figures
from trainer.estimate.learned import TABLES
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.plan.search import search
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe
from trainer.recipe.machine_file import Learned, LearnedFactors

RECIPE = Recipe.model_validate(
    {
        "name": "two-nodes",
        "model": "qwen3-30b-a3b",
        "cluster": {"gpu": "h100", "nodes": 2},
        "training": {"global_batch_size": 256},
        "parallelism": {"expert_model_parallel_size": 8},
        "knobs": {"moe_router_dtype": "fp32"},
    }
)
ESTIMATE = LearnedFactors(
    source="night",
    trials=4,
    gpu="h100",
    factors={"gemm": Learned(mean=-0.2, deviation=0.1), "of tomorrow": Learned(mean=1.0, deviation=0.1)},
    memory={
        "activations": Learned(mean=0.1, deviation=0.05),
        "uneven": Learned(mean=0.2, deviation=0.0),
        "outside": Learned(mean=0.5, deviation=0.1),
        "limit": Learned(mean=-0.1, deviation=0.0),
    },
)


def test_factors_move_the_constants_of_the_step_time_and_their_deviations_its_interval() -> None:
    cluster = learned_cluster(ESTIMATE, name="night")
    assert cluster.constants == move_constants({"gemm": -0.2})
    before, after = estimate_time(RECIPE), estimate_time(RECIPE, learned=cluster)
    assert after.step_s > before.step_s
    assert after.spread > before.spread


def test_figures_that_this_version_does_not_know_are_left_out_and_named() -> None:
    assert unknown_figures(ESTIMATE) == ["of tomorrow"]
    assert set(lesson_of_file(ESTIMATE).mean) == {"gemm"}


def test_memory_factors_move_the_parts_the_load_and_what_lies_outside() -> None:
    cluster = learned_cluster(ESTIMATE, name="night")
    before, after = estimate_memory(RECIPE), estimate_memory(RECIPE, learned=cluster.memory)
    assert after.by_part["weights"] == before.by_part["weights"]
    assert after.by_part["activations"] > 1.1 * before.by_part["activations"]
    assert after.outside_gib == pytest.approx(1.6487 * before.outside_gib, rel=1e-3)
    assert after.upper_gib - after.peak_gib > before.upper_gib - before.peak_gib
    assert cluster.limit_gib(RECIPE) == pytest.approx(0.9048 * (RECIPE.memory_limit_gib or 0), rel=1e-3)


def test_a_plan_ranks_by_what_was_learned() -> None:
    slow = LearnedFactors(source="night", gpu="h100", factors={"hybridep": Learned(mean=-2.0, deviation=0.1)})
    found, tables = search(RECIPE, learned=learned_cluster(slow, name="slow")), search(RECIPE)
    first, usual = (each.finals.candidates.recipe(int(each.ranking[0])) for each in (found, tables))
    assert usual.knob("moe_flex_dispatcher_backend") == "hybridep"
    assert first.knob("moe_flex_dispatcher_backend") != "hybridep" or first.knob("moe_token_dispatcher_type") != "flex"
    assert tables.learned is TABLES
