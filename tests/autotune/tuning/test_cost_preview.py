"""The cost that a dry run predicts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autotune.estimate.memory import memory_document
from autotune.tuning import preview
from autotune.tuning.preview import (
    NEEDED,
    CostPreview,
    PredictedTrial,
    _entry,
    _exploring_words,
    _parted,
    cost_of,
    expected_trials,
)
from policies.trial import Phase, Prediction
from policies.tuner.tuner import Tuner
from tests.policies.drawn import gpu_recipe, trial
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe
from trainer.recipe.launching import Launching, SlurmSettings


def cost(recipe: Recipe, bursts: int) -> CostPreview:
    found = cost_of([trial(recipe)], bursts)
    assert found is not None
    return found


def test_ranks_that_stay_up_are_started_once_and_those_of_one_job_per_burst_each_time() -> None:
    kept = gpu_recipe()
    once = cost(kept, 20)
    assert once.startup_s == once.first_start_s + 19 * once.later_start_s
    assert once.later_start_s < once.first_start_s
    launcher = Launching(slurm=SlurmSettings(job="per-burst"))
    per_burst = kept.model_copy(update={"burst": kept.burst.model_copy(update={"launcher": launcher})})
    each = cost(per_burst, 20)
    assert each.startup_s == 20 * once.first_start_s
    assert each.steps_s == once.steps_s


def step(phase: Phase, gain: float | None) -> PredictedTrial:
    one = trial(gpu_recipe())
    predicted = Prediction(gain=gain, gain_low=-0.5, gain_high=0.2) if gain is not None else Prediction()
    proposal = replace(one.proposal, phase=phase, predicted=predicted)
    return PredictedTrial(trial=replace(one, proposal=proposal), tokens_per_s_per_gpu=1.0)


def test_a_predicted_loss_is_on_the_path_only_where_it_makes_the_recipe_fit() -> None:
    base, gains, loses = step(Phase.FIT, None), step(Phase.SCALE, 0.1), step(Phase.SCALE, -0.33)
    fits = step(Phase.FIT, -0.33)
    path, exploring = _parted([base, fits, gains, loses])
    assert path == [base, fits, gains]
    assert exploring == [loses]
    assert NEEDED in _entry(fits).below
    assert NEEDED not in _entry(gains).below
    assert _exploring_words(exploring).endswith(": −33 % (−50 to +20 %)")
    assert _exploring_words([*exploring] * 3).endswith("(3 recipes): −33 % (−50 to +20 %)")


def test_a_dry_run_with_proxies_gives_the_tokens_of_the_full_size_as_its_gains_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preview, "MAX_PROPOSALS", 0)
    recipe = Recipe.model_validate(
        {
            "name": "proxied",
            "model": "qwen3-30b-a3b",
            "cluster": {"gpu": "h100", "nodes": 8},
            "parallelism": {"pipeline_model_parallel_size": 4, "expert_model_parallel_size": 8},
            "tune": {"proxy_nodes": 2},
        }
    )
    (base,) = expected_trials(recipe, memory_document(recipe), seed=1)
    assert base.trial.fidelity is not None
    log_step, _ = Tuner(recipe, 1).surrogate([]).time.predict(tabulate([recipe]))
    tokens = recipe.training.tokens_per_step
    assert base.tokens_per_s_per_gpu == pytest.approx(tokens / recipe.world_size / math.exp(float(log_step[0])))
    assert base.trial.outcomes[0].tokens_per_s_per_gpu != pytest.approx(base.tokens_per_s_per_gpu, rel=0.2)
