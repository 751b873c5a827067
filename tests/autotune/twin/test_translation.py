"""Factors of the closed forms become keys of the simulation by the table alone."""

from __future__ import annotations

import math

import pytest

from autotune.twin.translation import HOW, Row, default_of, machine_of, moved_keys, translation
from policies.surrogate.factors import factors
from tests.rows import for_every_row
from trainer.engines.simulated.rates import rate_values
from trainer.recipe.machine import Machine


@for_every_row(translation(), name=lambda row: f"{row.key} {row.factor}")
def test_a_row_names_a_factor_a_key_and_a_way(row: Row) -> None:
    assert row.factor in {factor.name for factor in factors()}
    assert row.how in HOW
    assert isinstance(default_of(row.key), float)
    assert (row.of in rate_values()) == (row.how == "odds")


def test_what_both_learn_alike_moves_no_key() -> None:
    theta = {factor.name: 0.4 for factor in factors()}
    assert moved_keys({}, theta, theta) == pytest.approx({row.key: default_of(row.key) for row in translation()})


def test_a_rate_goes_up_with_its_factor_and_a_time_with_it_too() -> None:
    keys = moved_keys({}, {"gemm": math.log(1.2), "latency": math.log(2.0)}, {})
    assert keys["compute.dense_gemm"] == pytest.approx(1.2)
    assert keys["compute.grouped_gemm"] == pytest.approx(1.2)
    assert keys["links.latency"] == pytest.approx(2.0)
    assert "links.network" not in keys


def test_collectives_that_take_longer_than_their_link_lower_its_bandwidth() -> None:
    assert moved_keys({}, {"network": -0.2, "dp": 0.3}, {})["links.network"] == pytest.approx(math.exp(-0.5))


def test_a_share_stays_a_share_and_a_key_within_its_bounds() -> None:
    assert moved_keys({}, {"ep_hidden": 9.0}, {})["overlap.ep"] == 1.0
    assert 0 < moved_keys({}, {"ep_hidden": -2.0}, {})["overlap.ep"] < 0.9
    assert moved_keys({}, {"dp_exposed": 1.0}, {})["overlap.dp"] < 1.0
    assert moved_keys({}, {"fixed": -1.0}, {})["host.step_ms"] == 0.0
    assert moved_keys({}, {"network": -99.0}, {})["links.network"] == pytest.approx(0.1)


def test_a_second_translation_goes_on_from_the_first() -> None:
    once = moved_keys({}, {"attention": 0.3}, {"attention": 0.1})
    assert moved_keys(once, {"attention": 0.3}, {"attention": 0.3}) == pytest.approx(once)


def test_the_keys_make_a_machine() -> None:
    machine = machine_of({"compute.attention": 1.5, "host.step_ms": 4.0}, name="ours")
    assert (machine.name, machine.compute.attention, machine.host.step_ms) == ("ours", 1.5, 4.0)
    assert machine.links == Machine().links
