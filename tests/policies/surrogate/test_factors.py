"""The factors' table, and what moving one does to the constants."""

from __future__ import annotations

import pytest

from policies.surrogate.factors import Factor, factors, move_constants
from trainer.estimate.time.constants import constants


@pytest.mark.parametrize("factor", factors(), ids=lambda factor: factor.name)
def test_a_factor_names_constants_that_there_are_and_has_a_spread(factor: Factor) -> None:
    assert factor.constants
    assert set(factor.constants) <= set(constants())
    assert factor.spread > 0
    assert factor.words


def test_names_are_given_once() -> None:
    names = [factor.name for factor in factors()]
    assert len(names) == len(set(names))


def test_nothing_moves_without_a_factor() -> None:
    assert move_constants({}) == {}
    assert move_constants({"gemm": 0.0}) == {}


@pytest.mark.parametrize("at", [-6.0, -0.5, 0.5, 6.0])
def test_each_scale_keeps_its_constants_in_their_range(at: float) -> None:
    rate = constants()["gemm_efficiency.hopper.bf16"]
    assert move_constants({"gemm": at})["gemm_efficiency.hopper.bf16"] == pytest.approx(rate * 2.718281828**at)
    assert 0 < move_constants({"ep_hidden": at})["ep_hidden"] < 1
    assert move_constants({"loss": at})["loss_bytes"] == max(at, 0.0)


def test_two_factors_on_one_constant_multiply() -> None:
    both = move_constants({"nvlink": 0.3, "alltoall": 0.2})["link_share.alltoall.nvlink8"]
    assert both == pytest.approx(constants()["link_share.alltoall.nvlink8"] * 2.718281828**0.5)
