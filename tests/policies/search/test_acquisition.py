"""The acquisition: what is asked of P(fits), what counts as lost in the noise, and how candidates are scored."""

from __future__ import annotations

import numpy as np
import pytest

from policies.search.acquisition import (
    LOSING_DEVIATIONS,
    MIN_FIT_PROBABILITY,
    gain_interval,
    is_lost_in_noise,
    min_fit_probability,
    score,
)
from policies.search.avoid import Avoid
from policies.surrogate.surrogate import fit_surrogate
from tests.policies.drawn import gpu_recipe, out_of_memory, outcome, trial
from trainer.estimate.candidates import tabulate


def test_the_more_proposals_have_run_out_of_memory_the_surer_the_next_must_be() -> None:
    """The recipe as given is not a proposal: its OOM shows nothing about the surrogate's confidence."""
    given = trial(gpu_recipe(), given=out_of_memory(gpu_recipe()))
    proposed = [trial(gpu_recipe(), number=n, parent=given, given=out_of_memory(gpu_recipe())) for n in (1, 2)]
    asked = [min_fit_probability([given, *proposed[:count]]) for count in range(3)]
    assert asked == pytest.approx([MIN_FIT_PROBABILITY, 0.9, 0.98])


def test_a_gain_is_lost_where_two_bursts_would_hardly_show_it() -> None:
    assert is_lost_in_noise(0.5, expected=0.05, most=0.25)
    assert not is_lost_in_noise(0.1, expected=0.05, most=0.25)
    assert not is_lost_in_noise(0.0, expected=0.001, most=0.01)


def test_the_interval_of_a_gain_holds_it_and_widens_with_the_noise() -> None:
    gain, low, high = gain_interval(0.1, 0.02, 0.0)
    _, lower, higher = gain_interval(0.1, 0.02, 0.05)
    assert lower < low < gain < high < higher


def test_what_does_not_fit_or_loses_has_no_expected_improvement() -> None:
    base = trial(gpu_recipe(), given=outcome(gpu_recipe(), peak_gib=60.0))
    recipes = [gpu_recipe({"micro_batch_size": size}) for size in (1, 2, 4, 8, 16)]
    table, now = tabulate(recipes), tabulate([base.recipe])
    surrogate = fit_surrogate([base], limit_gib=base.recipe.memory_limit_gib)
    found = score(table, surrogate.time.closed_form(now), surrogate, Avoid([base]), min_fit=0.5)
    assert (found.fits_probability[1:] <= found.fits_probability[:-1]).all()
    assert found.fits_probability[-1] < 0.5 < found.fits_probability[0]
    out = (found.fits_probability < 0.5) | (found.log_step > LOSING_DEVIATIONS * found.deviation)
    assert (found.expected_improvement[out] == 0).all()
    assert (found.expected_improvement[~out] > 0).all()
    assert np.isfinite(found.score).all()
