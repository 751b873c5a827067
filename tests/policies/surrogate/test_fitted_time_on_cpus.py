"""The surrogate where ranks compute on CPUs: own constants, CPU time, parts as such traces show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from analyzers.diagnosis import IdleByCause, Wall
from policies.surrogate.corrections import corrections
from policies.surrogate.evidence import Evidence, evidence_of, merge_cpu_parts
from policies.surrogate.factors import factors, move_constants
from policies.surrogate.prior import lesson_of, prior_of
from policies.surrogate.step_parts import work_of
from policies.surrogate.time import fit_time
from tests.policies.drawn import STEP_US, analysis, cpu_recipe, outcome, trial
from tests.policies.surrogate.planted_clusters import evidence, true_step_s
from trainer.burst import Outcome
from trainer.estimate.candidates import tabulate
from trainer.estimate.time.constants import constants
from trainer.estimate.time.estimate import stages_of
from trainer.recipe import Recipe
from trainer.recipe.rules.examples import FULL

ALONE = {"expert_model_parallel_size": 1, "expert_tensor_parallel_size": 1}
RECIPES = [cpu_recipe(FULL), cpu_recipe({"micro_batch_size": 4})]
OTHER = cpu_recipe(ALONE | {"micro_batch_size": 4})

MACHINES: dict[str, dict[str, float]] = {
    "a slow machine": {"cpu_products": -0.8, "cpu_memory": -0.8, "cpu_host": 0.8},
    "slow exchange": {"cpu_latency": 1.5, "cpu_links": -1.0},
    "a fast machine": {"cpu_products": 1.0, "cpu_memory": 0.5, "cpu_host": -0.7, "cpu_fixed": -0.5},
}


def on_cpus(theta: dict[str, float], recipes: Sequence[Recipe] = RECIPES) -> list[Evidence]:
    """Returns evidence with the parts that traces of CPU ranks distinguish."""
    return [
        replace(one, ranks=tuple(replace(rank, seconds=merge_cpu_parts(rank.seconds)) for rank in one.ranks))
        for one in evidence(recipes, theta)
    ]


def worked(theta: dict[str, float], recipes: Sequence[Recipe]) -> list[Evidence]:
    """Returns the evidence with the CPU time of the ranks."""
    values = move_constants(theta)
    share = {**constants(), **values}["cpu_moved"]
    return [
        replace(one, work_s=float(work_of(stages_of(tabulate([one.recipe]), constants=values), moved=share)[0]))
        for one in on_cpus(theta, recipes)
    ]


def gain(theta: dict[str, float], recipe: Recipe, over: Recipe) -> tuple[float, float]:
    """Returns (predicted from a burst of `over` alone, true) log of throughput gained."""
    steps, _ = fit_time(worked(theta, [over])).predict(tabulate([over, recipe]))
    return float(steps[0] - steps[1]), math.log(true_step_s(over, theta) / true_step_s(recipe, theta))


def burst(cpu_us: float) -> Outcome:
    """Returns steps of 400 ms, in which each of two ranks computed for `cpu_us`."""
    return msgspec.structs.replace(outcome(RECIPES[0]), step_us=[400_000.0] * 4, cpu_us=[2 * cpu_us] * 4)


@pytest.mark.parametrize("theta", MACHINES.values(), ids=MACHINES)
def test_another_recipe_on_a_planted_machine_is_predicted(theta: dict[str, float]) -> None:
    truth = math.log(true_step_s(OTHER, theta))
    mean, deviation = fit_time(on_cpus(theta)).predict(tabulate([OTHER]))
    assert abs(float(mean[0]) - truth) < 0.15
    assert abs(float(mean[0]) - truth) < 1.645 * float(deviation[0])


def test_no_constant_of_gpus_is_touched() -> None:
    found = fit_time(on_cpus(MACHINES["a slow machine"]))
    left = dict(zip((factor.name for factor in factors()), np.sqrt(np.diag(found.covariance)), strict=True))
    prior = {factor.name: factor.spread for factor in factors()}
    for name in ("gemm", "grouped", "nvlink", "network", "alltoall", "host", "fixed", "optimizer"):
        assert left[name] == pytest.approx(prior[name])


def test_corrections_are_in_units_of_cpus() -> None:
    found = corrections(fit_time(on_cpus(MACHINES["a slow machine"])), RECIPES[0])
    products = next(one for one in found if one.factor == "cpu_products")
    assert products.unit == "TFLOP/s"
    assert products.after < products.before


def test_a_study_on_cpus_teaches_another() -> None:
    lesson = lesson_of(fit_time(on_cpus(MACHINES["a slow machine"])), study="first")
    assert "gemm" not in lesson.mean
    taught = dict(zip((factor.name for factor in factors()), prior_of([lesson]).mean.tolist(), strict=True))
    assert taught["cpu_products"] < -0.3
    assert taught["cpu_host"] > 0.2


def test_cpu_time_shows_a_gain_that_wall_clock_time_on_a_busy_machine_hides() -> None:
    """Steps of a burst that neighbours made three times as long, with and without the ranks' own CPU time."""
    calm = fit_time(on_cpus({})).predict(tabulate([OTHER]))[0]
    busy = [replace(one, step_s=3 * (one.step_s or 0.0), deviation=0.3, ranks=()) for one in on_cpus({})]
    worked = [replace(one, work_s=0.85 * (one.step_s or 0.0) / 3) for one in busy]
    without, known = (fit_time(found).predict(tabulate([OTHER]))[0] for found in (busy, worked))
    assert abs(float(known[0] - calm[0])) < abs(float(without[0] - calm[0]))


def test_evidence_of_a_busy_burst_is_unsure_and_has_its_cpu_time() -> None:
    calm, busy = (evidence_of([trial(RECIPES[0], given=burst(cpu_us))])[0] for cpu_us in (390_000.0, 100_000.0))
    assert calm.work_s == pytest.approx(0.39)
    assert busy.work_s == pytest.approx(0.10)
    assert busy.deviation > 5 * calm.deviation


@pytest.mark.parametrize("stretch", [1.0, 4.0])
def test_the_gain_of_a_large_step_is_predicted_equally_on_a_busy_machine(stretch: float) -> None:
    predicted_gain, true = gain({"cpu_stretch": math.log(stretch), "cpu_host": 0.5}, OTHER, RECIPES[0])
    assert true > 0.6
    assert predicted_gain == pytest.approx(true, abs=0.15)


def test_what_neighbours_take_is_no_property_of_the_machine() -> None:
    found = fit_time(worked({"cpu_stretch": math.log(4)}, RECIPES))
    assert found.theta["cpu_stretch"] == pytest.approx(math.log(4), abs=0.2)
    assert all(abs(found.theta[name]) < 0.25 for name in ("cpu_products", "cpu_host", "cpu_links"))


def test_a_link_that_takes_no_cpu_time_is_not_taken_for_work() -> None:
    predicted_gain, true = gain({"cpu_links": -4.0, "cpu_moved": -4.0}, OTHER, RECIPES[0])
    assert predicted_gain == pytest.approx(true, abs=0.3)


def test_garbage_that_is_collected_at_every_step_is_not_taken_for_launching() -> None:
    each = cpu_recipe({"manual_gc": True, "manual_gc_interval": 1})
    rarely, larger = each.replace({"manual_gc_interval": 100}), each.replace({"micro_batch_size": 8})
    theta = {"cpu_gc": 0.7}
    for recipe in (rarely, larger):
        predicted_gain, true = gain(theta, recipe, each)
        assert predicted_gain == pytest.approx(true, abs=0.1)


def test_traced_steps_of_cpu_ranks_are_scaled_to_measured_ones() -> None:
    """The profiler slows them; on GPUs it does not."""
    parts = {Wall.COMMUNICATION: {"ep_dispatch": 0.25 * STEP_US}}
    found = evidence_of([trial(RECIPES[0], given=burst(390_000.0), seen=analysis(parts))])[0]
    assert found.ranks[0].seconds["ep"] == pytest.approx(0.25 * 0.4)


def test_the_share_of_garbage_collection_is_a_part_of_its_own() -> None:
    drawn = analysis({})
    step = msgspec.structs.replace(
        drawn.traces[0].steps[0],
        idle_by_cause=IdleByCause(host_us=0.5 * STEP_US),
        host_by_activity={"garbage_collection": 0.3 * STEP_US},
    )
    seen = msgspec.structs.replace(drawn, traces=[msgspec.structs.replace(drawn.traces[0], steps=[step])])
    seconds = evidence_of([trial(RECIPES[0], given=burst(390_000.0), seen=seen)])[0].ranks[0].seconds
    assert seconds["gc"] == pytest.approx(0.3 * 0.4)
    assert seconds["host"] == pytest.approx(0.2 * 0.4)


def test_a_burst_that_waits_for_a_link_is_not_taken_for_a_disturbed_one() -> None:
    waits = analysis({Wall.COMMUNICATION: {"ep_dispatch": 0.7 * STEP_US}})
    alone, linked = (
        evidence_of([trial(RECIPES[0], given=burst(110_000.0), seen=seen)])[0].deviation for seen in (None, waits)
    )
    assert linked < 0.6 * alone
