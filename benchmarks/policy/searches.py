"""Searches to compare a policy with: `plan`'s first choices in order, and Optuna's samplers over what `plan` varies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from benchmarks.policy.ground import Ground, Untraced
from benchmarks.policy.space import Point, Space
from benchmarks.policy.study import Study
from trainer.burst import FailureKind, Outcome
from trainer.recipe import Recipe

if TYPE_CHECKING:
    import optuna

RANDOM_START = 4  # as the policy's own search
LOOKED_AT = 100  # recipes that the memory gate is asked about before it is overruled
Search = Callable[[Ground, int], Study]


def plan_in_order(ground: Ground, budget: int) -> Study:
    """`plan`'s first choices, none left out."""
    started = time.process_time()
    with ground.untraced("plan") as field:
        for recipe in islice(ground.planned(), budget):
            field.run(recipe)
        return field.study(ended="budget", cpu_s=time.process_time() - started)


def sampled(name: str, sampler: Callable[[int], Any]) -> Search:
    """From `plan`'s first choice on, what a sampler suggests, made legal and let through the memory gate."""

    def search(ground: Ground, budget: int) -> Study:
        started = time.process_time()
        with ground.untraced(name) as field:
            asked = _Asked(Space(ground.scenario.recipe), sampler(ground.scenario.seed))
            asked.tell(field.trials[0].recipe, field.trials[0].outcomes[0])
            options: Iterable[Recipe] = ground.planned()
            while field.bursts < budget and (recipe := _admitted(options, field)):
                asked.tell(recipe, field.run(recipe))
                options = asked.suggested()
            ended = "budget" if field.bursts == budget else "nothing new is let through"
            return field.study(ended=ended, cpu_s=time.process_time() - started)

    return search


def _admitted(options: Iterable[Recipe], field: Untraced) -> Recipe | None:
    """The first that is new and that the memory gate lets through; where it refuses all, the one that needs least."""
    gate = field.gate
    refused: list[tuple[float, Recipe]] = []
    for recipe in islice(options, LOOKED_AT):
        if field.tried(recipe):
            continue
        forecast = gate.forecast(recipe)
        if forecast.fits is not False:
            return recipe
        refused.append((forecast.peak_gib or math.inf, recipe))
    return min(refused, key=lambda known: known[0])[1] if refused else None


class _Asked:
    """An Optuna study of points, told what the recipes that were run gave."""

    def __init__(self, space: Space, sampler: optuna.samplers.BaseSampler) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._axes: dict[str, optuna.distributions.BaseDistribution] = {
            axis: optuna.distributions.CategoricalDistribution(labels) for axis, labels in space.axes.items()
        }
        self._worst = 0.0

    def suggested(self) -> Iterable[Recipe]:
        """Legal recipes around the next point. The point itself is dropped: what ran is told in its place."""
        import optuna

        trial = self._study.ask(self._axes)
        point: Point = {axis: str(label) for axis, label in trial.params.items()}
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return self._space.nearest(point)

    def tell(self, recipe: Recipe, outcome: Outcome) -> None:
        """Out of memory is a completed, infeasible trial as slow as the slowest; other failures tell nothing."""
        import optuna

        point, rate = self._space.point(recipe), outcome.tokens_per_s_per_gpu
        oom = outcome.failure is not None and outcome.failure.kind is FailureKind.OOM
        if point is None or (rate is None and not oom):
            return
        value = math.log(rate) if rate else self._worst
        self._worst = min(value, self._worst or value)
        trial = optuna.trial.create_trial(
            params=point, distributions=self._axes, value=value, constraints={"memory": 0.1 if oom else -0.1}
        )
        self._study.add_trial(trial)


def _tpe(seed: int) -> Any:
    import optuna

    return optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=RANDOM_START)


def _gp(seed: int) -> Any:
    import optuna
    import torch

    torch.set_num_threads(1)
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=RANDOM_START)


def _random(seed: int) -> Any:
    import optuna

    return optuna.samplers.RandomSampler(seed=seed)


SEARCHES: dict[str, Search] = {
    "tpe": sampled("tpe", _tpe),
    "gp": sampled("gp", _gp),
    "random": sampled("random", _random),
    "plan": plan_in_order,
}
