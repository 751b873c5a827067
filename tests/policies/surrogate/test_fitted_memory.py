"""Memory of the surrogate: peaks and OOMs move the probability of fitting the way they should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policies.surrogate.evidence import Evidence
from policies.surrogate.memory import (
    GROUPS,
    OUTSIDE_RECIPE_SPREAD,
    OUTSIDE_SPREAD,
    _Observed,
    fit_memory,
    table_memory_prior,
)
from tests.policies.drawn import gpu_recipe
from tests.policies.surrogate.planted_clusters import OTHER, RECIPES
from trainer.estimate.candidates import tabulate
from trainer.estimate.memory.estimate import estimate_memory, memory_of
from trainer.recipe import Recipe


def ran(recipe: Recipe, times: float, number: int = 0) -> Evidence:
    """Returns evidence with peaks of `times` the estimate's on every pipeline rank."""
    table = memory_of(tabulate([recipe]))
    by_rank = sum(table.by_part.values(), np.zeros(()))[0]
    peaks = tuple(float(peak * times) for peak in by_rank if peak)
    return Evidence(number=number, recipe=recipe, step_s=1.0, deviation=0.005, peak_gib=peaks)


def ran_out(recipe: Recipe, denied_gib: float | None = None) -> Evidence:
    return Evidence(number=9, recipe=recipe, step_s=None, deviation=0.005, out_of_memory=True, denied_gib=denied_gib)


def chance(recipe: Recipe, found: list[Evidence], limit_gib: float) -> float:
    return float(fit_memory(found, limit_gib).fits(tabulate([recipe]))[0])


def needs(recipe: Recipe) -> float:
    measured = estimate_memory(recipe)
    return measured.peak_gib + measured.outside_gib


def test_without_a_limit_everything_fits() -> None:
    assert fit_memory([], None).fits(tabulate(RECIPES)).tolist() == [1.0] * len(RECIPES)


def test_the_chance_of_fitting_grows_with_the_limit() -> None:
    chances = [chance(OTHER, [], needs(OTHER) * times) for times in (0.7, 0.9, 1.0, 1.1, 1.3, 2.0)]
    assert chances == sorted(chances)
    assert chances[0] < 0.02
    assert chances[-1] > 0.98


@pytest.mark.parametrize(("times", "more"), [(0.85, True), (1.15, False)])
def test_measured_peaks_move_the_probability_that_a_similar_recipe_fits(times: float, more: bool) -> None:
    limit = needs(OTHER) * 1.05
    taught = chance(OTHER, [ran(recipe, times, n) for n, recipe in enumerate(RECIPES)], limit)
    assert (taught > chance(OTHER, [], limit)) is more


def test_a_recipe_that_ran_out_is_not_predicted_to_fit() -> None:
    limit = needs(OTHER) * 1.08
    assert chance(OTHER, [], limit) > 0.6
    assert chance(OTHER, [ran_out(OTHER)], limit) < 0.5


def test_a_recipe_that_ran_out_speaks_against_what_needs_as_much() -> None:
    smaller = OTHER.replace({"recompute_granularity": "selective", "recompute_modules": ("layernorm",)})
    limit = needs(OTHER) * 1.05
    assert chance(smaller, [ran_out(OTHER)], limit) < chance(smaller, [], limit)


def test_the_expected_peak_of_a_measured_recipe_is_what_was_measured() -> None:
    peak = ran(RECIPES[0], 1.2)
    found = fit_memory([peak], 1e6).peaks(tabulate([RECIPES[0]]))
    assert float(found[0]) == pytest.approx(max(peak.peak_gib), rel=0.03)


def test_running_out_without_a_known_limit_teaches_nothing() -> None:
    recipe = gpu_recipe()
    assert fit_memory([ran_out(recipe)], None).fits(tabulate([recipe])).tolist() == [1.0]


def test_a_rank_that_ran_out_below_the_limit_shows_how_much_room_there_is() -> None:
    outside_gib, limit = estimate_memory(RECIPES[0]).outside_gib, needs(RECIPES[0]) * 1.2
    found = fit_memory([ran_out(RECIPES[0], 0.9 * limit - outside_gib)], limit)
    assert found.limit_gib == pytest.approx(0.9 * limit)
    near = tabulate([RECIPES[0]])
    assert float(found.fits(near)[0]) < float(replace(found, limit_gib=limit).fits(near)[0])


def test_the_limit_is_not_below_what_ran_whatever_was_denied() -> None:
    peak = ran(OTHER, 1.0)
    found = fit_memory([peak, ran_out(RECIPES[0], 0.5 * max(peak.peak_gib))], needs(OTHER) * 1.2)
    assert found.limit_gib == pytest.approx(needs(OTHER))


def test_a_request_beyond_the_limit_does_not_lower_it() -> None:
    limit = needs(OTHER) * 1.05
    assert fit_memory([ran_out(OTHER, 2 * limit)], limit).limit_gib == limit


def with_outside(found: Evidence, times: float) -> Evidence:
    """Returns the evidence with `times` the estimate's memory outside the allocator."""
    return replace(found, outside_gib=times * estimate_memory(found.recipe).outside_gib)


@pytest.mark.parametrize(("times", "more"), [(0.5, True), (2.0, False)])
def test_memory_outside_the_allocator_moves_the_chance_of_another_recipe(times: float, more: bool) -> None:
    limit = needs(OTHER) * 1.03
    plain = [ran(recipe, 1.0, number) for number, recipe in enumerate(RECIPES)]
    taught = chance(OTHER, [with_outside(each, times) for each in plain], limit)
    assert (taught > chance(OTHER, plain, limit)) is more


def test_memory_outside_the_allocator_is_surer_with_every_recipe_that_measured_it() -> None:
    measured = [with_outside(ran(recipe, 1.0, number), 1.4) for number, recipe in enumerate(RECIPES)]
    found = [fit_memory(measured[:count], 1e6) for count in (1, 2, 4)]
    assert [each.mean[-1] for each in found] == pytest.approx([np.log(1.4)] * 3, abs=0.06)
    spreads = [float(each.covariance[-1, -1]) ** 0.5 for each in (fit_memory([], 1e6), *found)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[1] < OUTSIDE_SPREAD / 2


def test_another_recipe_may_differ_outside_the_allocator_however_often_it_was_measured() -> None:
    measured = [with_outside(ran(RECIPES[0], 1.0, number), 1.0) for number in range(50)]
    table = tabulate([OTHER])
    need, deviation = fit_memory(measured, 1e6).needs(table)
    assert deviation[0] > OUTSIDE_RECIPE_SPREAD * estimate_memory(OTHER).outside_gib / need[0]


def test_a_limit_that_was_met_counts_memory_outside_the_allocator() -> None:
    limit, held = needs(RECIPES[0]) * 1.2, 2 * estimate_memory(RECIPES[0]).outside_gib
    short = replace(ran_out(RECIPES[0], 0.9 * limit - held), outside_gib=held)
    assert fit_memory([short], limit).limit_gib == pytest.approx(0.9 * limit)


def test_a_recipe_that_ran_at_the_limit_says_nothing_of_measured_memory_outside_the_allocator() -> None:
    """Measures both parts, so that their sum is known and the fact that it fits adds nothing."""
    measured = with_outside(ran(OTHER, 1.0), 1.0)
    tight, roomy = (fit_memory([measured], needs(OTHER) * times) for times in (1.001, 10.0))
    assert tight.mean == pytest.approx(roomy.mean, abs=1e-3)
    assert tight.covariance == pytest.approx(roomy.covariance, rel=1e-2, abs=1e-9)


def test_the_curvature_of_memory_outside_the_allocator_is_that_of_the_cost() -> None:
    found = [with_outside(each, 1.2) for each in (ran(RECIPES[0], 1.0), ran_out(OTHER))]
    seen = _Observed(found, needs(OTHER) * 1.02, table_memory_prior())
    at, step = np.zeros(len(GROUPS) + 1), np.eye(len(GROUPS) + 1)[-1] * 1e-2
    bend = (seen.cost(at + step) - 2 * seen.cost(at) + seen.cost(at - step)) / 1e-4
    assert seen.curvature(at)[-1, -1] == pytest.approx(bend, rel=1e-3)
    assert not seen.curvature(at)[-1, :-1].any()
