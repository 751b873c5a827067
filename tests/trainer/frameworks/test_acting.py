"""Compares the settings that the trainer prints with those of the recipe."""

from __future__ import annotations

from tests.policies.drawn import cpu_recipe
from trainer.frameworks.megatron_bridge.acting import acting_in_configuration
from trainer.frameworks.megatron_lm.acting import acting_knobs

DUMP = """
------------------------ arguments ------------------------
  expert_model_parallel_size ...................... 1
  micro_batch_size ................................ 4
  recompute_granularity ........................... full
  recompute_method ................................ uniform
  recompute_num_layers ............................ 1
  num_layers ...................................... 2
-------------------- end of arguments ---------------------
"""


def test_knobs_are_read_from_the_argument_dump_in_the_recipes_words() -> None:
    recipe = cpu_recipe().replace(
        {"micro_batch_size": 2, "recompute_granularity": "full", "recompute_method": "uniform"}
    )
    acting = acting_knobs(recipe, DUMP)
    assert acting["micro_batch_size"] == 4
    assert acting["recompute_granularity"] == "full"
    assert "moe_grouped_gemm" not in acting  # the recipe does not ask for it


def test_a_log_without_a_dump_gives_nothing() -> None:
    assert acting_knobs(cpu_recipe(), "iteration 1/ 10") == {}


CONFIGURATION = """
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.qwen.qwen_provider.Qwen3MoEModelProvider30B_A3B
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 1
  moe_router_dtype: null
  cuda_graph_scope: []
  expert_model_parallel_size: 2
train:
  micro_batch_size: 1
  global_batch_size: 16
  manual_gc: false
"""


def test_knobs_are_read_from_the_configuration_that_bridge_ends_with() -> None:
    recipe = cpu_recipe().replace({"micro_batch_size": 2, "manual_gc": True, "recompute_granularity": "full"})
    acting = acting_in_configuration(recipe, CONFIGURATION)
    assert acting["micro_batch_size"] == 1
    assert acting["manual_gc"] is False
    assert acting["recompute_granularity"] == "full"
    assert acting["expert_model_parallel_size"] == 2
    assert not {"moe_router_dtype", "cuda_graph_scope", "moe_grouped_gemm"} & acting.keys()


def test_a_file_that_is_not_a_configuration_gives_nothing() -> None:
    assert acting_in_configuration(cpu_recipe(), "a: [") == {}
    assert acting_in_configuration(cpu_recipe(), "text") == {}
