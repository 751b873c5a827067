"""Sets of fixes that make a recipe fit: the cheapest that is predicted to, offloading last, a few tries at most."""

from __future__ import annotations

from policies.candidates.fitting import HOPELESS_TRIALS, FitSet, cheapest_fit
from policies.candidates.knowledge import Knowledge
from policies.fixes import FITTING, LAST_RESORTS
from policies.search.acquisition import CONFIDENT_FIT_PROBABILITY
from policies.trial import Phase, Trial
from tests.policies.drawn import cpu_recipe, gpu_recipe, knowledge, out_of_memory, trial
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import check


def under(limit_gib: float, recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"memory_gib": limit_gib})})


def ran_out(limit_gib: float, recipe: Recipe, *, died: int = 0) -> Knowledge:
    """Returns the knowledge after the recipe, and as many proposals of the fit phase, ran out of memory under a
    limit."""
    given = trial(under(limit_gib, recipe), given=out_of_memory(recipe), verdict=None)
    others: list[Trial] = []
    for number in range(1, died + 1):
        found = cheapest_fit(knowledge(given, *others))
        assert found is not None
        others.append(_died(found, given, number))
    return knowledge(given, *others)


def _died(found: FitSet, given: Trial, number: int) -> Trial:
    return trial(found.recipe, number=number, parent=given, phase=Phase.FIT, given=out_of_memory(found.recipe))


def test_the_cheapest_set_that_surely_fits_comes_first_and_offloading_last() -> None:
    """The less room there is, the more is given up."""
    found = []
    for limit_gib in (60.0, 45.0, 36.0, 30.0):
        each = cheapest_fit(ran_out(limit_gib, gpu_recipe()))
        assert each is not None
        assert {fix.name for fix in each.fixes} <= {*FITTING, *LAST_RESORTS}
        assert [finding for finding in check(each.recipe) if finding.kind == "error"] == []
        found.append(each)
    confident = [each.cost for each in found if each.is_confident]
    offloaded = [bool({fix.name for fix in each.fixes} & set(LAST_RESORTS)) for each in found]
    assert len(confident) >= 2
    assert confident == sorted(confident)
    assert offloaded == sorted(offloaded)
    assert offloaded[0] < offloaded[-1]


def test_a_set_that_ran_out_is_not_tried_again() -> None:
    recipe = cpu_recipe({"micro_batch_size": 8})
    first = cheapest_fit(ran_out(0.3, recipe))
    second = cheapest_fit(ran_out(0.3, recipe, died=1))
    assert first is not None
    assert second is not None
    assert second.recipe.digest() != first.recipe.digest()


def test_where_no_set_is_predicted_to_fit_a_few_are_tried_and_then_none() -> None:
    recipe = cpu_recipe()
    assert cheapest_fit(ran_out(0.001, recipe, died=HOPELESS_TRIALS)) is None
    last = cheapest_fit(ran_out(0.001, recipe, died=HOPELESS_TRIALS - 1))
    assert last is not None
    assert last.fits_probability < CONFIDENT_FIT_PROBABILITY


def test_frozen_knobs_stay_still() -> None:
    frozen = ("recompute_granularity", "micro_batch_size", "expert_model_parallel_size")
    recipe = gpu_recipe({"micro_batch_size": 4}, freeze=frozen)
    found = cheapest_fit(ran_out(60.0, recipe))
    assert found is None or not set(recipe.diff(found.recipe)) & set(frozen)


def test_a_recipe_that_is_frozen_whole_has_no_set() -> None:
    assert cheapest_fit(ran_out(40.0, gpu_recipe(freeze=tuple(KNOBS)))) is None
