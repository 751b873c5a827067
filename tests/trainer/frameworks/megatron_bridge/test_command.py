"""Checks a recipe applied to a user's Bridge command: it changes the settings that it mentions, and no others."""

from __future__ import annotations

from typing import Any

from trainer.frameworks.megatron_bridge.command import OF_OVERLAP, with_recipe
from trainer.recipe import Recipe

LINE = ("python", "run.py", "--recipe", "qwen3_30b_a3b_pretrain_config", "checkpoint.save=/ckpt")


def recipe(**knobs: Any) -> Recipe:
    data = {"name": "x", "model": "qwen3-30b-a3b", "cluster": {"gpu": "b200", "nodes": 1, "gpus_per_node": 8}}
    return Recipe.model_validate(data).replace({"expert_model_parallel_size": 8, **knobs})


def test_what_the_recipe_does_not_mention_is_left_to_the_bridge_recipe() -> None:
    words = with_recipe(LINE, recipe(moe_permute_fusion=True))
    assert words[:5] == LINE
    assert "model.moe_permute_fusion=true" in words
    assert "model.expert_model_parallel_size=8" in words
    assert "mixed_precision=bf16_mixed" in words
    left = ("model.num_layers", "model.recompute_granularity", "comm_overlap", "ddp.overlap_grad_reduce")
    assert not [word for word in words if word.lstrip("+~").partition("=")[0] in left]


def test_a_knob_of_comm_overlap_is_written_inside_it_while_the_rest_is_its_own() -> None:
    words = with_recipe(LINE, recipe(overlap_grad_reduce=True))
    assert "comm_overlap.overlap_grad_reduce=true" in words
    assert "comm_overlap=null" not in words


def test_a_knob_is_written_where_it_acts_where_the_bridge_recipe_has_no_comm_overlap() -> None:
    words = with_recipe(LINE, recipe(overlap_grad_reduce=True, overlap_p2p_comm=False), overlap=False)
    assert "ddp.overlap_grad_reduce=true" in words
    assert {"model.overlap_p2p_comm=false", "model.batch_p2p_comm=false"} <= set(words)
    assert not [word for word in words if "comm_overlap" in word or "overlap_param_gather" in word]


def test_comm_overlap_is_taken_away_where_all_of_it_is_mentioned() -> None:
    words = with_recipe(LINE, recipe(**dict.fromkeys(OF_OVERLAP, False)))
    assert "comm_overlap=null" in words
    assert "ddp.overlap_grad_reduce=false" in words


def test_of_a_path_that_both_set_the_recipes_stands() -> None:
    words = with_recipe((*LINE, "model.expert_model_parallel_size=2", "{args}", "logger.log_interval=1"), recipe())
    assert [word for word in words if "expert_model_parallel_size" in word] == ["model.expert_model_parallel_size=8"]
    assert words[-1] == "logger.log_interval=1"


def test_a_switch_that_the_recipe_turns_off_is_written_off() -> None:
    assert "model.moe_permute_fusion=false" in with_recipe(LINE, recipe(moe_permute_fusion=False))
