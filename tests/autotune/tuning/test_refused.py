"""A study of a trainer that refuses something: it costs one burst, and the tuning continues."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from policies.trial import Status
from policies.tuner.tuner import Tuner
from tests.autotune.tuning.fakes import loop_in, outcome_of
from tests.policies.drawn import cpu_recipe, out_of_memory
from trainer.burst import BurstPhase, Failure, FailureKind, Outcome
from trainer.recipe import Recipe

SAID = "AssertionError: sequence parallel not supported by torch LayerNorm"


def without_sequence_parallel(recipe: Recipe) -> Outcome | float:
    """Returns the outcome of a trainer that refuses sequence parallel, fits with full recompute only, and is faster
    with larger micro batches."""
    if recipe.knob("sequence_parallel") and recipe.parallelism.tensor_model_parallel_size > 1:
        return Outcome(failure=Failure(kind=FailureKind.CONFIG, phase=BurstPhase.INIT, rank=0, evidence=SAID))
    if recipe.knob("recompute_granularity") != "full":
        return out_of_memory(recipe)
    world, limit = recipe.world_size, recipe.memory_limit_gib or 1.0
    step_us = 1e5 / (1 + 0.2 * recipe.training.micro_batch_size)
    return outcome_of(step_us, peak_gib=[0.9 * limit] * world, limit_gib=limit, ranks=world)


def test_the_same_cause_is_not_paid_for_again(tmp_path: Path) -> None:
    """On four CPU ranks the fixes of the walls would try more layouts with sequence parallel if the refusal were not
    remembered."""
    cluster = cpu_recipe().cluster.model_copy(update={"gpus_per_node": 4, "memory_gib": 0.3})
    base = cpu_recipe({"expert_model_parallel_size": 4}).model_copy(update={"cluster": cluster})
    loop = loop_in(tmp_path, rule=without_sequence_parallel, base=base, budget=16)
    replace(loop, policy=Tuner(base, 1234)).run()
    trials = loop.bench.journal.history.trials
    failed = [trial for trial in trials if trial.status is Status.FAILED]
    assert len(failed) == 1, [trial.changes for trial in failed]
    assert len([trial for trial in trials if trial.status is Status.OK]) >= 2
