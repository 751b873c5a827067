"""The twin benchmark draws machines and recipes that its study did not run, and reports each kind's errors."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.policy.scenarios import scenarios
from benchmarks.twin import DISTANCES, STARTS, Errors, _base, _cell, _scenario, _together


def test_every_start_is_a_scenario_on_a_machine_that_the_policy_does_not_know() -> None:
    known = {each.machine.name for each in scenarios()}
    drawn = [_scenario(place) for place in range(len(STARTS))]
    assert not known & {scenario.machine.name for scenario, _ in drawn}
    assert {far for _, far in drawn} == set(DISTANCES)
    assert _scenario(3)[0].machine == _scenario(3)[0].machine


def test_another_model_on_more_nodes_keeps_the_gpu_and_drops_the_layout() -> None:
    own = _scenario(0)[0].recipe
    other = _base(own, "mixtral-8x7b", 4, random.Random(1))
    assert (other.model, other.cluster.gpu, other.cluster.nodes) == (
        "mixtral-8x7b",
        own.cluster.gpu,
        4 * own.cluster.nodes,
    )
    assert other.knob("pipeline_model_parallel_layout") is None


def test_errors_of_several_machines_are_one_table() -> None:
    one = Errors(kinds=("a",), by_predictor={"tables": (math.log(1.1),)}, inside=(True,))
    both = _together([one, Errors(kinds=("b",), by_predictor={"tables": (math.log(1.3),)}, inside=(False,))])
    assert both.kinds == ("a", "b")
    assert _cell(both.by_predictor["tables"]) == "20.0%, p90 28.0%"
    assert sum(both.inside) == pytest.approx(1)
