"""The one model of noise: between bursts, between neighbours, the half-spread, and a trial's own variance."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from policies.noise import (
    HALF_SPREAD_WITHOUT_REPEATS,
    MIN_FREEDOM,
    MIN_HALF_SPREAD,
    PINNED,
    Noise,
    t_quantile,
)
from tests.autotune.tuning.fakes import outcome_of
from tests.autotune.tuning.test_judge import trial_of


def test_without_repeats_the_prior_is_used() -> None:
    once = Noise(trials=[trial_of(outcome_of(100_000, spread=0.0))])
    spread = once.between_bursts()
    assert (spread.deviation, spread.freedom, spread.repeats) == (PINNED, 1, 0)
    assert spread.measured_freedom == MIN_FREEDOM
    assert once.half_spread() == HALF_SPREAD_WITHOUT_REPEATS


def test_a_slow_drift_is_between_bursts_and_hardly_between_neighbours() -> None:
    drifting = trial_of(*(outcome_of(100_000 * 1.02**step, spread=0.0) for step in range(5)))
    noise = Noise(trials=[drifting])
    assert noise.between_bursts().deviation == pytest.approx(0.0280, abs=0.0005)
    assert noise.between_neighbours().deviation == pytest.approx(0.0127, abs=0.0005)


def test_the_half_spread_is_that_of_repeats_and_never_below_its_floor() -> None:
    wide = trial_of(outcome_of(100_000, spread=0.0), outcome_of(110_000, spread=0.0))
    steady = trial_of(outcome_of(100_000, spread=0.0), outcome_of(100_100, spread=0.0))
    assert Noise(trials=[wide]).half_spread() == pytest.approx((1.1 - 1) / 2 / ((1.1 + 1) / 2))
    assert Noise(trials=[steady]).half_spread() == MIN_HALF_SPREAD


def test_steps_that_scatter_more_than_bursts_widen_their_trial() -> None:
    calm, rough = trial_of(outcome_of(100_000, spread=0.0)), trial_of(outcome_of(100_000, spread=0.5), number=1)
    noise = Noise(trials=[calm, calm, calm, rough])
    assert noise.variance_of(calm) == pytest.approx(noise.between_bursts().deviation ** 2)
    assert noise.variance_of(rough) > 4 * noise.variance_of(calm)


def test_student_is_wider_than_normal_and_comes_near_it() -> None:
    normal = NormalDist().inv_cdf(0.975)
    assert t_quantile(2, 0.975) == pytest.approx(4.303, abs=1e-3)
    assert math.isclose(t_quantile(10_000, 0.975), normal, rel_tol=1e-3)
