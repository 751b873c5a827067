"""What the trainer says it runs with, against what the recipe asked for."""

from __future__ import annotations

from tests.policies.drawn import cpu_recipe
from trainer.engines.command.acting import acting_knobs

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


def test_a_log_without_a_dump_tells_nothing() -> None:
    assert acting_knobs(cpu_recipe(), "iteration 1/ 10") == {}
