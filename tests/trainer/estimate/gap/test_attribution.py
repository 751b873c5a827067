"""Shares of changes: exact, whatever their order, few changes or many."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.estimate.candidates import Flags, Floats
from trainer.estimate.gap.attribution import EXACT, attributed

WEIGHTS = np.array([5.0, 3.0, 2.0, 1.0, 0.5, 0.25, 4.0, 7.0, 0.1, 6.0])


def cost(made: Flags) -> Floats:
    """Returns a cost in which the first two changes save 2 more together than apart."""
    count = made.shape[1]
    saved = made.astype(float) @ WEIGHTS[:count] + 2.0 * (made[:, 0] & made[:, 1]).astype(float)
    found: Floats = np.stack([100.0 - saved, 50.0 - 2.0 * saved])
    return found


@pytest.mark.parametrize("count", [2, 4, EXACT, 10])
def test_shares_add_up_to_the_difference_of_the_ends(count: int) -> None:
    found = attributed(cost, count)
    ends = cost(np.array([[False] * count, [True] * count]))
    np.testing.assert_allclose(found.shares.sum(axis=-1), ends[:, 0] - ends[:, 1])


@pytest.mark.parametrize("count", [2, EXACT, 10])
def test_an_interaction_is_divided_evenly_and_named(count: int) -> None:
    found = attributed(cost, count)
    np.testing.assert_allclose(found.shares[0, :2], [6.0, 4.0])
    np.testing.assert_allclose(found.alone[0, :2], [5.0, 3.0])
    assert found.together[0, 1] == pytest.approx(2.0)
    assert np.abs(found.together[2:, :]).max(initial=0.0) < 1e-9


def test_nothing_changed_has_no_share() -> None:
    assert attributed(lambda made: np.full((1, len(made)), 3.0), 0).shares.shape == (1, 0)
