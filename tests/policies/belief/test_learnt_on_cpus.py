"""What is learnt where ranks compute on CPUs: own constants, CPU time, parts as such traces tell them."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from policies.belief.corrections import corrections
from policies.belief.evidence import Evidence, evidence_of, told_together
from policies.belief.factors import factors
from policies.belief.prior import lesson_of, prior_of
from policies.belief.time import learnt
from tests.policies.belief.planted import evidence, true_step_s
from tests.policies.drawn import cpu_recipe, outcome, trial
from trainer.burst import Outcome
from trainer.estimate.candidates import tabulate

TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
ALONE = {"expert_model_parallel_size": 1, "expert_tensor_parallel_size": 1}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
RECIPES = [cpu_recipe(FULL), cpu_recipe({"micro_batch_size": 4})]
OTHER = cpu_recipe(ALONE | {"micro_batch_size": 4})

MACHINES: dict[str, dict[str, float]] = {
    "a slow machine": {"cpu_products": -0.8, "cpu_memory": -0.8, "cpu_host": 0.8},
    "slow exchange": {"cpu_latency": 1.5, "cpu_links": -1.0},
    "a fast machine": {"cpu_products": 1.0, "cpu_memory": 0.5, "cpu_host": -0.7, "cpu_fixed": -0.5},
}


def on_cpus(theta: dict[str, float]) -> list[Evidence]:
    """As the traces of CPU ranks tell parts."""
    return [
        replace(one, ranks=tuple(replace(rank, seconds=told_together(rank.seconds)) for rank in one.ranks))
        for one in evidence(RECIPES, theta)
    ]


def burst(cpu_us: float) -> Outcome:
    """Steps of 400 ms, in which each of two ranks computed so long."""
    return msgspec.structs.replace(outcome(RECIPES[0]), step_us=[400_000.0] * 4, cpu_us=[2 * cpu_us] * 4)


@pytest.mark.parametrize("theta", MACHINES.values(), ids=MACHINES)
def test_another_recipe_on_a_planted_machine_is_predicted(theta: dict[str, float]) -> None:
    truth = math.log(true_step_s(OTHER, theta))
    mean, deviation = learnt(on_cpus(theta)).predict(tabulate([OTHER]))
    assert abs(float(mean[0]) - truth) < 0.15
    assert abs(float(mean[0]) - truth) < 1.645 * float(deviation[0])


def test_no_constant_of_gpus_is_touched() -> None:
    found = learnt(on_cpus(MACHINES["a slow machine"]))
    left = dict(zip((factor.name for factor in factors()), np.sqrt(np.diag(found.covariance)), strict=True))
    prior = {factor.name: factor.spread for factor in factors()}
    for name in ("gemm", "grouped", "nvlink", "network", "alltoall", "host", "fixed", "optimizer"):
        assert left[name] == pytest.approx(prior[name])


def test_what_was_learnt_is_told_in_units_of_cpus() -> None:
    told = corrections(learnt(on_cpus(MACHINES["a slow machine"])), RECIPES[0])
    products = next(one for one in told if one.factor == "cpu_products")
    assert products.unit == "TFLOP/s"
    assert products.after < products.before


def test_a_study_on_cpus_teaches_another() -> None:
    lesson = lesson_of(learnt(on_cpus(MACHINES["a slow machine"])), study="first")
    assert "gemm" not in lesson.mean
    taught = dict(zip((factor.name for factor in factors()), prior_of([lesson]).mean.tolist(), strict=True))
    assert taught["cpu_products"] < -0.3
    assert taught["cpu_host"] > 0.2


def test_cpu_time_tells_what_wall_time_on_a_busy_machine_does_not() -> None:
    """Steps of a burst that neighbours made three times as long, with and without the ranks' own CPU time."""
    calm = learnt(on_cpus({})).predict(tabulate([OTHER]))[0]
    busy = [replace(one, step_s=3 * (one.step_s or 0.0), deviation=0.3, ranks=()) for one in on_cpus({})]
    worked = [replace(one, work_s=0.85 * (one.step_s or 0.0) / 3) for one in busy]
    without, known = (learnt(found).predict(tabulate([OTHER]))[0] for found in (busy, worked))
    assert abs(float(known[0] - calm[0])) < abs(float(without[0] - calm[0]))


def test_evidence_of_a_busy_burst_is_unsure_and_has_its_cpu_time() -> None:
    calm, busy = (evidence_of([trial(RECIPES[0], given=burst(cpu_us))])[0] for cpu_us in (390_000.0, 100_000.0))
    assert calm.work_s == pytest.approx(0.39)
    assert busy.work_s == pytest.approx(0.10)
    assert busy.deviation > 5 * calm.deviation
