"""Step times of the surrogate: the prior is the estimate, planted clusters are found, one odd burst moves little."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.surrogate.evidence import PARTS, Evidence, RankParts
from policies.surrogate.factors import factors
from policies.surrogate.time import fit_time
from tests.policies.surrogate.planted_clusters import OTHER, RECIPES, evidence, true_step_s
from trainer.estimate.candidates import tabulate
from trainer.estimate.time.estimate import time_of

CLUSTERS: dict[str, dict[str, float]] = {
    "slow network": {"network": -0.6, "latency": 0.4},
    "slow products": {"gemm": -0.3, "grouped": -0.3},
    "fast host": {"host": -0.8},
    "long bubbles": {"bubble": 0.6},
}


def predicted(found: list[Evidence]) -> tuple[float, float]:
    mean, deviation = fit_time(found).predict(tabulate([OTHER]))
    return float(mean[0]), float(deviation[0])


def test_before_any_burst_the_surrogate_is_the_estimate() -> None:
    table = tabulate(RECIPES)
    assert fit_time([]).means(table) == pytest.approx(np.log(time_of(table).step_s))


@pytest.mark.parametrize("theta", CLUSTERS.values(), ids=CLUSTERS)
def test_another_recipe_on_a_planted_cluster_is_predicted(theta: dict[str, float]) -> None:
    truth = math.log(true_step_s(OTHER, theta))
    before, _ = predicted([])
    after, deviation = predicted(evidence(RECIPES, theta))
    assert abs(after - truth) < 0.04
    assert abs(after - truth) < 1.645 * deviation
    assert abs(after - truth) < max(abs(before - truth), 0.02)


def test_garbage_that_a_base_collects_is_not_predicted_of_recipes_that_do_not() -> None:
    """Automatic garbage collection, unbound cores and experts that run one by one are the base's alone."""
    base, *others = RECIPES
    base = base.replace({"manual_gc": False, "cpu_affinity": "none", "moe_grouped_gemm": False})
    others = [each.replace({"manual_gc": True, "cpu_affinity": "spread"}) for each in (*others, OTHER)]
    theta = {"gc": 600.0, "host_unbound": 0.8, "host_ungrouped": 0.7}
    found = fit_time(evidence([base, others[0]], theta))
    assert found.theta["gc"] == pytest.approx(600.0, rel=0.2)
    assert abs(found.theta["fixed"]) < 0.3
    mean, _ = found.predict(tabulate([others[-1]]))
    assert mean[0] == pytest.approx(math.log(true_step_s(others[-1], theta)), abs=0.02)


def test_traced_parts_teach_more_than_steps_alone() -> None:
    _, traced = predicted(evidence(RECIPES[:2], CLUSTERS["slow network"]))
    _, untraced = predicted(evidence(RECIPES[:2], CLUSTERS["slow network"], traced=False))
    assert traced < untraced


def test_factors_that_no_burst_has_touched_keep_their_spread() -> None:
    found = fit_time(evidence(RECIPES[:2], CLUSTERS["slow products"]))
    spread = dict(zip((f.name for f in factors()), np.sqrt(np.diag(found.covariance)).tolist(), strict=True))
    prior = {factor.name: factor.spread for factor in factors()}
    for name in ("hybridep", "cp", "recompute", "host_graphed"):
        assert found.theta[name] == 0.0
        assert spread[name] == pytest.approx(prior[name])
    assert spread["gemm"] < prior["gemm"]


def test_one_outlier_among_the_parts_moves_the_prediction_little() -> None:
    sound = evidence(RECIPES, CLUSTERS["slow network"])
    first = sound[0].ranks[0]
    odd = RankParts(pipeline_rank=0, seconds=first.seconds | {"attention": 20 * first.seconds["attention"]})
    bent = [replace(sound[0], ranks=(odd, *sound[0].ranks[1:])), *sound[1:]]
    assert abs(predicted(bent)[0] - predicted(sound)[0]) < 0.05


def test_the_same_evidence_teaches_the_same_in_any_order() -> None:
    found = evidence(RECIPES, CLUSTERS["long bubbles"])
    assert predicted(found) == predicted(found)
    assert predicted(found[::-1]) == pytest.approx(predicted(found), abs=1e-3)


def test_what_was_measured_is_predicted_to_within_its_noise() -> None:
    """Measures one recipe a third slower than the closed form, which no part of the step explains."""
    found = evidence(RECIPES, {})
    slow = [replace(found[0], step_s=(found[0].step_s or 0.0) * 1.33), *found[1:]]
    mean, deviation = fit_time(slow).predict(tabulate([RECIPES[0]]))
    assert float(mean[0]) == pytest.approx(math.log(slow[0].step_s or 0.0), abs=0.05)
    assert float(deviation[0]) < 0.05


@settings(max_examples=5)
@given(st.lists(st.floats(-7.0, 7.0), min_size=len(PARTS) + 1, max_size=len(PARTS) + 1))
def test_whatever_a_trace_says_the_prediction_is_finite(logs: list[float]) -> None:
    """Steps and parts up to a thousand times longer or shorter than any cluster's."""
    sound = evidence(RECIPES[:2], {})
    factors_of = dict(zip(PARTS, np.exp(logs[1:]).tolist(), strict=True))
    wild = [
        replace(
            each,
            step_s=(each.step_s or 0.0) * math.exp(logs[0]),
            ranks=tuple(
                RankParts(
                    pipeline_rank=rank.pipeline_rank,
                    seconds={name: seconds * factors_of[name] for name, seconds in rank.seconds.items()},
                )
                for rank in each.ranks
            ),
        )
        for each in sound
    ]
    mean, deviation = predicted(wild)
    assert math.isfinite(mean)
    assert 0 < deviation < math.inf


def test_the_difference_of_two_recipes_is_surer_than_either_step() -> None:
    found = fit_time(evidence(RECIPES[:2], CLUSTERS["slow network"]))
    one, other = (found.closed_form(tabulate([recipe])) for recipe in (RECIPES[0], OTHER))
    (at_one, sure_one), (at_other, sure_other) = (
        (float(each[0]) for each in found.predict(tabulate([recipe]))) for recipe in (RECIPES[0], OTHER)
    )
    over, deviation = (float(each[0]) for each in found.difference(other, one))
    assert over == pytest.approx(at_other - at_one)
    assert deviation < math.hypot(sure_one, sure_other)
    assert float(found.difference(one, one)[0][0]) == 0.0


def test_factors_that_no_burst_has_updated_cancel_in_a_difference() -> None:
    """Before any burst the whole step is unknown; a switch that hardly moves the difference is sure all the same."""
    found = fit_time([])
    switched = OTHER.replace({"moe_router_fusion": not OTHER.knob("moe_router_fusion")})
    _, alone = found.predict(tabulate([switched]))
    _, over = found.difference(found.closed_form(tabulate([switched])), found.closed_form(tabulate([OTHER])))
    assert float(over[0]) < 0.2 * float(alone[0])
