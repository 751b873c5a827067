"""The screening of the tuner's constants: how values move, which constants a group has, how studies compare."""

from __future__ import annotations

import math

import pytest

from benchmarks.policy.screen import GROUPS, MISSING, Trajectory, compared, moved, variations
from policies.constants import constants
from tests.rows import filled


@pytest.mark.parametrize(
    ("value", "factor", "expected"),
    [(0.2, 2, 0.4), (0.5, 2, 2 / 3), (0.9, 0.5, 0.9 / 1.1), (1, 0.5, 1), (40, 0.5, 20), (1.25, 2, 2.5)],
)
def test_shares_move_in_their_odds_and_whole_numbers_stay_whole(value: float, factor: float, expected: float) -> None:
    assert moved(value, factor) == pytest.approx(expected)


def test_every_constant_stays_valid_both_ways() -> None:
    for name, row in filled(constants().items()):
        for factor in (0.5, 2):
            assert moved(row.value, factor) > 0, name
            assert row.value >= 1 or moved(row.value, factor) < 1, name


def test_a_group_has_constants_and_an_unknown_one_is_an_error() -> None:
    table = constants()
    for each in variations(GROUPS, (), table):
        assert {table[name].group for name in each.names} == {each.title}
    with pytest.raises(KeyError, match="no_such"):
        variations((), ("phase_share", "no_such"), table)


def test_studies_compare_by_their_bursts() -> None:
    base = Trajectory(scenario="one", start=0.0, bursts=((0.0, 1.0, True), (10.0, 1.0, False), (20.0, 1.0, False)))
    other = Trajectory(scenario="one", start=0.0, bursts=((5.0, 1.0, False), (10.0, 1.0, False), (10.0, 1.0, False)))
    assert compared(base, base) == (False, [0.0, 0.0])
    changed, logs = compared(other, base)
    assert changed
    assert logs == pytest.approx([-math.log(MISSING), math.log(0.5)])
    assert (base.ooms, other.ooms) == (1, 0)
