"""Keys move until simulated steps and parts are the measured ones, as far as their prior lets them."""

from __future__ import annotations

import math

import pytest

from autotune.twin.matching import Observed, matched, parts_of
from autotune.twin.translation import machine_of
from tests.autotune.outside import SMALL
from trainer.engines.simulated import busy_by_rank, simulated_step_s
from trainer.recipe import Recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.source import parse_source

KEYS = {"compute.dense_gemm": 1.0, "compute.attention": 1.0, "host.launch": 1.0, "overlap.ep": 1.0}
TRUE = KEYS | {"compute.dense_gemm": 0.6, "compute.attention": 1.5}


def recipes() -> list[Recipe]:
    base = recipe_from(parse_source(SMALL, name="small.yaml"))
    return [base.replace({"micro_batch_size": size}) for size in (1, 2, 4)]


def observed(keys: dict[str, float]) -> list[Observed]:
    """Returns measurements of the true machine and those of a simulation with these keys."""
    found = []
    for recipe in recipes():
        ours, theirs = (
            {work: us * 1e-6 for work, us in busy_by_rank(recipe, machine_of(each))[0].items()} for each in (TRUE, keys)
        )
        step_s = simulated_step_s(recipe, machine_of(TRUE))
        empty = dict.fromkeys(("quantize", "ep"), 0.0)
        parts = parts_of(empty | ours, empty | theirs, rank=0, step_s=step_s)
        found.append(Observed(recipe=recipe, step_s=step_s, parts=parts))
    return found


def test_two_updates_find_the_keys_of_the_machine_that_was_measured() -> None:
    keys = dict(KEYS)
    for _ in range(2):
        keys = matched(keys, KEYS, dict.fromkeys(KEYS, 0.5), observed(keys))
    assert keys["compute.dense_gemm"] == pytest.approx(0.6, rel=0.03)
    assert keys["compute.attention"] == pytest.approx(1.5, rel=0.03)
    assert 0 < keys["overlap.ep"] <= 1.0


def test_a_key_moves_no_further_than_its_prior_lets_it() -> None:
    spreads = dict.fromkeys(KEYS, 0.5) | {"compute.dense_gemm": 1e-4}
    keys = matched(KEYS, KEYS, spreads, observed(dict(KEYS)))
    assert keys["compute.dense_gemm"] == pytest.approx(1.0, abs=0.01)
    assert keys["compute.attention"] > 1.1


def test_parts_too_small_to_tell_are_not_compared() -> None:
    seconds = dict.fromkeys(
        ("gemm", "grouped", "attention", "permute", "quantize", "memory_bound", "optimizer", "ep"), 1.0
    )
    found = parts_of(seconds | {"ep": 1e-6}, seconds, rank=2, step_s=10.0)
    assert {part.work for part in found} == set(seconds) - {"ep"}
    assert {part.pipeline_rank for part in found} == {2}
    assert math.isclose(found[0].measured_s, 1.0)
