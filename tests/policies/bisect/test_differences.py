"""Differences between two recipes: knobs that belong together, variables, options of a command; and what is between."""

from __future__ import annotations

from typing import Any

import pytest

from policies.bisect.differences import ends_of
from policies.bisect.effects import predicted_effects
from trainer.errors import BadInputError
from trainer.recipe import Recipe, load_recipe

TRAINER: dict[str, Any] = {
    "kind": "megatron-lm",
    "command": ("python", "pretrain_gpt.py", "--attention-backend", "flash", "--log-interval", "1"),
    "env": {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "4"},
}


def commanded(**trainer: Any) -> Recipe:
    data = load_recipe("deepseek-v3-1024xh100").model_dump()
    data["burst"] |= {"engine": "command", "launcher": "local", "machine": None}
    return Recipe.model_validate(data | {"trainer": TRAINER | trainer})


def test_each_variable_option_and_line_of_a_trainer_is_a_difference() -> None:
    command = ("python", "pretrain_gpt.py", "--attention-backend", "fused", "--own-flag", "--log-interval", "1")
    b = commanded(command=command, env={"NCCL_DEBUG": "WARN", "MALLOC_ARENA_MAX": "1"}, setup=("module load new",))
    ends = ends_of(commanded(), b)
    assert {each.name for each in ends.differences} == {
        "trainer.command --attention-backend",
        "trainer.command --own-flag",
        "trainer.env.MALLOC_ARENA_MAX",
        "trainer.env.OMP_NUM_THREADS",
        "trainer.setup",
    }
    everything = ends.recipe(frozenset(range(5))).trainer
    assert everything is not None
    assert b.trainer is not None
    assert sorted(everything.command) == sorted(b.trainer.command)
    assert (everything.env, everything.setup) == (b.trainer.env, b.trainer.setup)
    assert ends.recipe(frozenset()).trainer == commanded().trainer


def test_variables_of_our_own_ranks_are_differences_of_a_digest_of_their_own() -> None:
    a = load_recipe("cpu-moe")
    b = a.model_copy(update={"burst": a.burst.model_copy(update={"env": {"OMP_THREAD_LIMIT": "1"}})})
    ends = ends_of(a, b)
    assert [each.name for each in ends.differences] == ["burst.env.OMP_THREAD_LIMIT"]
    assert ends.recipe(frozenset({0})).burst.env == {"OMP_THREAD_LIMIT": "1"}
    assert ends.recipe(frozenset({0})).digest() == b.digest() != a.digest()


def test_knobs_that_belong_together_are_one_difference_and_idle_ones_are_set_aside() -> None:
    a = load_recipe("cpu-moe")
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    ends = ends_of(a, a.replace({**full, "threads_per_rank": 2, "cp_comm_type": "a2a"}))
    assert len(ends.differences) == 2
    assert [each.name for each in ends.idle] == ["cp_comm_type"]
    by_name = dict(zip((each.name for each in ends.differences), predicted_effects(ends), strict=True))
    assert by_name["recompute_granularity and 2 more"].log_cost > 0.1


def test_recipes_of_two_clusters_are_refused() -> None:
    with pytest.raises(BadInputError, match="cluster"):
        ends_of(load_recipe("cpu-moe"), load_recipe("deepseek-v3-1024xh100"))
