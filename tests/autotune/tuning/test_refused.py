"""Studies of a trainer that refuses something: it is paid for once or twice, told why, and the tuning goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from policies.learned import LearnedPolicy
from policies.trial import Status, Trial
from tests.autotune.tuning.fakes import FakeEngine, loop_in, outcome_of
from tests.policies.drawn import gpu_recipe
from trainer.burst import BurstPhase, Failure, FailureKind, Outcome
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe

SAID = {
    "sequence_parallel": "AssertionError: sequence parallel not supported by torch LayerNorm",
    "pipeline_model_parallel_size": "AssertionError: pipeline model parallelism is not supported by this fork",
}


def refusing(knob: str) -> FakeEngine:
    """A trainer without that knob, as slow as the estimate says."""

    def rule(recipe: Recipe) -> Outcome | float:
        if _asks(recipe, knob):
            failure = Failure(kind=FailureKind.CONFIG, phase=BurstPhase.INIT, rank=0, evidence=SAID[knob])
            return Outcome(failure=failure)
        step_us = 1e6 * estimate_time(recipe).step_s
        world = recipe.world_size
        return outcome_of(step_us, peak_gib=[1.0] * world, limit_gib=recipe.memory_limit_gib, ranks=world)

    return FakeEngine(rule)


def _asks(recipe: Recipe, knob: str) -> bool:
    if knob == "sequence_parallel":
        return bool(recipe.knob(knob)) and recipe.parallelism.tensor_model_parallel_size > 1
    return int(recipe.knob(knob)) > 1


def study(folder: Path, base: Recipe, knob: str, budget: int) -> list[Trial]:
    loop = replace(loop_in(folder, rule=lambda recipe: 1.0, base=base, engine=refusing(knob), budget=budget))
    loop = replace(loop, policy=LearnedPolicy(base, 1234))
    loop.run()
    return loop.bench.journal.history.trials


@pytest.mark.parametrize("knob", sorted(SAID))
def test_the_same_cause_is_not_paid_for_again(knob: str, tmp_path: Path) -> None:
    """On four nodes, where the layouts that are believed best have PP and TP."""
    base = gpu_recipe({"expert_model_parallel_size": 8}).model_copy(update={"name": "refused"})
    trials = study(tmp_path, base, knob, 14)
    failed = [trial for trial in trials if trial.status is Status.FAILED]
    assert len(failed) <= 2, [trial.changes for trial in failed]
    assert len([trial for trial in trials if trial.status is Status.OK]) >= 3
