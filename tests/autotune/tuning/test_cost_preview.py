"""The cost that a dry run predicts."""

from __future__ import annotations

from autotune.tuning.preview import CostPreview, cost_of
from tests.policies.drawn import gpu_recipe, trial
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
