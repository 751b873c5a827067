from __future__ import annotations

from collections.abc import Callable

import pytest
from policies.gate import MemoryGate

from policies.trial import Trial
from tests.policies.drawn import cpu_recipe, out_of_memory, outcome, trial
from trainer.recipe import Recipe

BASE = cpu_recipe()  # limit 2 GiB a rank


def by_micro_batch(per_row_gib: float, fixed_gib: float = 0.2) -> Callable[[Recipe], float]:
    """An estimate that grows with the micro batch."""
    return lambda recipe: fixed_gib + per_row_gib * recipe.training.micro_batch_size


def at(micro_batch: int) -> Recipe:
    return cpu_recipe({"micro_batch_size": micro_batch})


def measured(number: int, recipe: Recipe, peak_gib: float) -> Trial:
    return trial(recipe, number=number, given=outcome(recipe, peak_gib=peak_gib))


def died(number: int, recipe: Recipe) -> Trial:
    return trial(recipe, number=number, given=out_of_memory(recipe))


def test_without_trials_the_closed_form_speaks_with_a_margin() -> None:
    gate = MemoryGate([], estimate=by_micro_batch(0.22))
    assert gate.forecast(at(4)).fits is True
    assert gate.forecast(at(8)).fits is False  # 1.96 of 2 GiB, too near for a form that nothing has checked


def test_a_measured_peak_moves_the_forecast() -> None:
    gate = MemoryGate([measured(0, at(1), 1.5)], estimate=by_micro_batch(0.2))
    forecast = gate.forecast(at(2))
    assert forecast.peak_gib == pytest.approx(1.7)
    assert forecast.fits is True
    assert gate.forecast(at(8)).fits is False


def test_two_measured_peaks_give_the_slope() -> None:
    trials = [measured(0, at(1), 0.5), measured(1, at(2), 0.9)]  # twice the estimated difference
    forecast = MemoryGate(trials, estimate=by_micro_batch(0.2)).forecast(at(4))
    assert forecast.peak_gib == pytest.approx(0.9 + 0.4 * 2.0)


def test_what_needs_as_much_as_a_dead_recipe_is_refused_with_its_reason() -> None:
    gate = MemoryGate([died(3, at(2))], estimate=by_micro_batch(0.1))
    forecast = gate.forecast(at(4))
    assert forecast.fits is False
    assert "trial 3" in forecast.because


def test_a_living_recipe_above_the_dead_one_lifts_the_refusal() -> None:
    """Memory is not monotone in the estimate: then only the calibrated forecast decides."""
    gate = MemoryGate([died(0, at(2)), measured(1, at(8), 1.2)], estimate=by_micro_batch(0.05))
    assert gate.forecast(at(4)).fits is True


def test_an_out_of_memory_run_scales_an_estimate_that_was_too_low() -> None:
    lower = by_micro_batch(0.2, fixed_gib=0.0)  # micro batch 4 is estimated at 0.8 GiB and needed 2
    gate = MemoryGate([died(0, at(4))], estimate=lower)
    assert gate.forecast(at(2)).peak_gib == pytest.approx(1.0)
    assert gate.forecast(at(2)).fits is True


def test_the_gate_abstains_where_the_closed_form_does() -> None:
    forecast = MemoryGate([], estimate=lambda recipe: None).forecast(BASE)
    assert forecast.fits is None
    assert forecast.because


def test_the_gate_abstains_without_a_limit() -> None:
    recipe = BASE.model_copy(update={"cluster": BASE.cluster.model_copy(update={"memory_gib": None})})
    if recipe.memory_limit_gib is None:
        assert MemoryGate([], estimate=by_micro_batch(0.1)).forecast(recipe).fits is None
