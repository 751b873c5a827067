"""Offset and drift of the clocks of ranks: fitted to moments that two ranks share, and passed on from rank to rank."""

from __future__ import annotations

import numpy as np
import pytest

from analyzers.intervals import Floats
from analyzers.ranks.clocks import Pair, align, fit, median

MOMENTS = np.linspace(0.0, 1e7, 60)  # ten seconds


def _seen_by(offset_us: float, drift: float = 0.0, noise_us: float = 0.0) -> Floats:
    noise: Floats = np.random.default_rng(1).normal(0.0, noise_us, len(MOMENTS)) if noise_us else np.zeros(len(MOMENTS))
    return MOMENTS * (1 + drift) + offset_us + noise


def _pair(first: int, second: int, first_us: Floats, second_us: Floats) -> Pair:
    return Pair(first=first, second=second, first_us=first_us, second_us=second_us)


@pytest.mark.parametrize("offset_us", [0.0, 1e7, -1e7])
@pytest.mark.parametrize("drift", [0.0, 5e-5, -5e-5])
def test_an_offset_of_seconds_and_a_drift_are_found(offset_us: float, drift: float) -> None:
    own = _seen_by(offset_us, drift, noise_us=3.0)
    found = fit(own[None, :], MOMENTS)
    aligned = own * (1 + found.rate[0]) + found.shift_us[0]
    assert np.abs(aligned - MOMENTS).max() < 15.0
    assert found.spread_us[0] < 5.0


def test_noise_alone_is_no_drift() -> None:
    found = fit(_seen_by(500.0, noise_us=20.0)[None, :], MOMENTS)
    assert found.rate[0] == 0.0
    assert found.shift_us[0] == pytest.approx(-500.0, abs=10.0)


def test_some_moments_that_are_not_shared_do_not_move_the_clock() -> None:
    own = _seen_by(500.0)
    own[::5] += 40_000.0
    assert fit(own[None, :], MOMENTS).shift_us[0] == pytest.approx(-500.0)


def test_moments_that_one_rank_lacks_are_left_out() -> None:
    own = _seen_by(500.0)
    own[:20] = np.nan
    found = fit(np.stack([own, np.full(len(own), np.nan)]), MOMENTS)
    assert found.shift_us[0] == pytest.approx(-500.0)
    assert np.isnan(found.shift_us[1])


def test_clocks_are_aligned_through_ranks_between() -> None:
    pairs = [_pair(0, 1, MOMENTS, _seen_by(-70.0, 2e-5)), _pair(1, 2, _seen_by(-70.0, 2e-5), _seen_by(9e6, -3e-5))]
    clocks = align(3, pairs)
    assert {clock.root for clock in clocks} == {0}
    assert np.abs(clocks[2].common(_seen_by(9e6, -3e-5)) - MOMENTS).max() < 0.1


def test_ranks_that_share_nothing_stay_apart() -> None:
    clocks = align(4, [_pair(0, 1, MOMENTS, _seen_by(5.0)), _pair(2, 3, MOMENTS, _seen_by(7.0))])
    assert [clock.root for clock in clocks] == [0, 0, 2, 2]
    assert clocks[3].shift_us == pytest.approx(-7.0)


def test_the_closest_way_is_taken() -> None:
    pairs = [
        _pair(0, 2, MOMENTS, _seen_by(100.0, noise_us=900.0)),
        _pair(0, 1, MOMENTS, _seen_by(10.0)),
        _pair(1, 2, _seen_by(10.0), _seen_by(40.0)),
    ]
    assert align(3, pairs)[2].shift_us == pytest.approx(-40.0)


def test_devices_in_one_file_have_one_clock() -> None:
    clocks = align(2, [], same=[[(0, 1_000.0), (1, 1_250.0)]])
    assert [clock.root for clock in clocks] == [0, 0]
    assert clocks[1].shift_us == 250.0


def test_the_median_of_nothing_is_not_known() -> None:
    assert np.isnan(median(np.empty((2, 0)))).all()
    assert median(np.array([[3.0, np.nan, 1.0, 2.0]])).tolist() == [2.0]


def test_threads_that_mostly_wake_up_late_do_not_move_the_clock() -> None:
    own = _seen_by(1e7, noise_us=10.0)
    late = np.random.default_rng(2).random(len(own)) < 0.6
    own[late] += np.random.default_rng(3).uniform(300.0, 6000.0, int(late.sum()))
    assert fit(own[None, :], MOMENTS).shift_us[0] == pytest.approx(-1e7, abs=30.0)
