"""The nearest legal recipe: compared with every smaller set of changes on cases small enough to try them all."""

from itertools import combinations
from operator import attrgetter
from typing import Any

import pytest

from tests.rows import for_every_row
from trainer.recipe import load_recipe
from trainer.recipe.rules import nearest_valid
from trainer.recipe.rules.check import ERRORS, errors_of
from trainer.recipe.rules.examples import recipe_of
from trainer.recipe.rules.nearest import CP, LAYOUT, PP, TP, VPP
from trainer.recipe.rules.repair import Cost, Repair, cost, moved, other_values
from trainer.recipe.rules.rule import Suggestion, example
from trainer.recipe.schema import Recipe

curable = [rule for rule in ERRORS if recipe_of(rule.breaking) and errors_of(recipe_of(rule.breaking))[0].suggestion]
# Recipes with several errors: independent ones, ones with a common fix, and ones whose fix causes the next
SEVERAL_ERRORS: dict[str, dict[str, Any]] = {
    "two apart": {"micro_batch_size": 3, "sequence_parallel": True},
    "three of one dispatcher": {
        "overlap_moe_expert_parallel_comm": True, "moe_shared_expert_overlap": True,
        "moe_token_dispatcher_type": "allgather",
    },
    "one change cures both": {
        "overlap_moe_expert_parallel_comm": True, "recompute_granularity": "full", "recompute_method": "uniform",
        "recompute_num_layers": 1, "cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn",),
        "use_te_rng_tracker": True,
    },
    "a cure that breaks something else": {"context_parallel_size": 3, "expert_model_parallel_size": 16},
    "a chain of requirements": {
        "main_grads_dtype": "bfloat16", "grad_reduce_in_fp32": True, "use_distributed_optimizer": False,
        "fp8_param_gather": True, "precision": "fp8_current",
    },
    "layers into stages": {"pipeline_model_parallel_size": 3, "virtual_pipeline_model_parallel_size": 2},
}  # fmt: skip


def repaired(recipe: Recipe) -> Suggestion:
    near = nearest_valid(recipe)
    assert near is not None
    assert not errors_of(near)
    return {name: there for name, (_, there) in recipe.diff(near).items()}


def cheapest(recipe: Recipe, number: int) -> Cost:
    """Returns the cost of the cheapest legal set of up to `number` changes, of knobs in its errors or suggestions."""
    errors = errors_of(recipe)
    named = {name for error in errors for name in (*error.knobs, *error.suggestion)}
    names = sorted(named - set(recipe.tune.freeze))
    moves = [(name, value) for name in names for value in other_values(recipe, name)]
    moves += [move for error in errors for move in error.suggestion.items()]
    costs = [
        cost(recipe, changes)
        for size in range(1, number + 1)
        for chosen in combinations(moves, size)
        if len(changes := dict(chosen)) == size and not errors_of(moved(recipe, changes))
    ]
    return min(costs, default=(99, 0.0))


@for_every_row(curable, name=attrgetter("id"))
def test_no_single_change_is_smaller_than_what_is_found_for_one_broken_rule(rule: Any) -> None:
    recipe = recipe_of(rule.breaking)
    assert cost(recipe, repaired(recipe)) <= cheapest(recipe, 1)


@pytest.mark.parametrize("knobs", SEVERAL_ERRORS.values(), ids=list(SEVERAL_ERRORS))
def test_no_pair_of_changes_is_smaller_than_what_is_found_for_several_broken_rules(knobs: dict[str, Any]) -> None:
    recipe = recipe_of(example(**knobs))
    assert len(errors_of(recipe)) > 1
    assert cost(recipe, repaired(recipe)) <= cheapest(recipe, 2)


def test_errors_apart_from_each_other_take_a_change_each() -> None:
    assert repaired(recipe_of(example(micro_batch_size=3, sequence_parallel=True))) == {
        "micro_batch_size": 4,
        "sequence_parallel": False,
    }


@pytest.mark.parametrize("batch", [2, 12, 60, 65, 100])
def test_a_frozen_global_batch_gets_a_dp_that_divides_it(batch: int) -> None:
    changes = repaired(recipe_of(example(global_batch_size=batch)))
    assert changes
    assert "global_batch_size" not in changes


def test_a_frozen_knob_never_moves_and_the_hint_says_what_thawing_it_takes() -> None:
    frozen = (TP, PP, CP, "global_batch_size")
    recipe = recipe_of(example(global_batch_size=65))
    recipe = recipe.model_copy(update={"tune": recipe.tune.model_copy(update={"freeze": frozen})})
    (error,) = errors_of(recipe)
    assert nearest_valid(recipe) is None
    assert error.suggestion == {}
    assert "take it out of tune.freeze" in error.hint


def test_a_global_batch_that_is_not_frozen_moves() -> None:
    recipe = recipe_of(example(global_batch_size=65))
    recipe = recipe.model_copy(update={"tune": recipe.tune.model_copy(update={"freeze": ()})})
    assert set(repaired(recipe)) == {"global_batch_size"}


def test_layers_that_do_not_divide_get_a_layout_where_pp_moves() -> None:
    plain = {LAYOUT: None, VPP: None, "overlap_p2p_comm": False}
    assert set(repaired(load_recipe("deepseek-v3-1024xh100").replace(plain | {PP: 16}))) == {LAYOUT}


def test_a_legal_recipe_is_its_own_nearest() -> None:
    assert repaired(recipe_of(example())) == {}


def test_the_same_recipe_has_the_same_nearest() -> None:
    recipe = recipe_of(example(**SEVERAL_ERRORS["three of one dispatcher"]))
    assert repaired(recipe) == repaired(recipe)


def test_past_the_bound_the_suggestions_are_followed_and_idle_changes_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.recipe.rules.repair.MAX_CHECKED", 0)
    recipe = recipe_of(example(**SEVERAL_ERRORS["three of one dispatcher"]))
    changes = Repair(errors=errors_of, rules={rule.id: rule for rule in ERRORS}).changes(recipe)
    assert changes
    assert not errors_of(moved(recipe, changes))
    for name in changes:
        assert errors_of(moved(recipe, {other: value for other, value in changes.items() if other != name}))
