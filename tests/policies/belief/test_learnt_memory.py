"""What is learnt of memory: peaks and deaths move the probability of fitting the way they should."""

from __future__ import annotations

import numpy as np
import pytest

from policies.belief.evidence import Evidence
from policies.belief.memory import learnt_memory
from tests.policies.belief.planted import OTHER, RECIPES
from tests.policies.drawn import gpu_recipe
from trainer.estimate.candidates import tabulate
from trainer.estimate.memory.estimate import estimate_memory, memory_of
from trainer.recipe import Recipe


def ran(recipe: Recipe, times: float, number: int = 0) -> Evidence:
    """With peaks so many times the estimate's on every pipeline rank."""
    table = memory_of(tabulate([recipe]))
    by_rank = sum(table.by_part.values(), np.zeros(()))[0]
    peaks = tuple(float(peak * times) for peak in by_rank if peak)
    return Evidence(number=number, recipe=recipe, step_s=1.0, deviation=0.005, peak_gib=peaks)


def died(recipe: Recipe) -> Evidence:
    return Evidence(number=9, recipe=recipe, step_s=None, deviation=0.005, out_of_memory=True)


def chance(recipe: Recipe, found: list[Evidence], limit_gib: float) -> float:
    return float(learnt_memory(found, limit_gib).fits(tabulate([recipe]))[0])


def needs(recipe: Recipe) -> float:
    told = estimate_memory(recipe)
    return told.peak_gib + told.outside_gib


def test_without_a_limit_everything_fits() -> None:
    assert learnt_memory([], None).fits(tabulate(RECIPES)).tolist() == [1.0] * len(RECIPES)


def test_the_chance_of_fitting_grows_with_the_limit() -> None:
    chances = [chance(OTHER, [], needs(OTHER) * times) for times in (0.7, 0.9, 1.0, 1.1, 1.3, 2.0)]
    assert chances == sorted(chances)
    assert chances[0] < 0.02
    assert chances[-1] > 0.98


@pytest.mark.parametrize(("times", "more"), [(0.85, True), (1.15, False)])
def test_measured_peaks_move_the_chance_of_a_like_recipe(times: float, more: bool) -> None:
    limit = needs(OTHER) * 1.05
    taught = chance(OTHER, [ran(recipe, times, n) for n, recipe in enumerate(RECIPES)], limit)
    assert (taught > chance(OTHER, [], limit)) is more


def test_a_recipe_that_died_is_not_believed_to_fit() -> None:
    limit = needs(OTHER) * 1.08
    assert chance(OTHER, [], limit) > 0.6
    assert chance(OTHER, [died(OTHER)], limit) < 0.5


def test_a_recipe_that_died_speaks_against_what_needs_as_much() -> None:
    smaller = OTHER.replace({"recompute_granularity": "selective", "recompute_modules": ("layernorm",)})
    limit = needs(OTHER) * 1.05
    assert chance(smaller, [died(OTHER)], limit) < chance(smaller, [], limit)


def test_the_expected_peak_of_a_measured_recipe_is_what_was_measured() -> None:
    peak = ran(RECIPES[0], 1.2)
    found = learnt_memory([peak], 1e6).peaks(tabulate([RECIPES[0]]))
    assert float(found[0]) == pytest.approx(max(peak.peak_gib), rel=0.03)


def test_a_death_without_a_known_limit_teaches_nothing() -> None:
    recipe = gpu_recipe()
    assert learnt_memory([died(recipe)], None).fits(tabulate([recipe])).tolist() == [1.0]
