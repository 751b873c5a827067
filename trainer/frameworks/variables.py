"""The environment of a rank, for bursts and exports."""

from __future__ import annotations

from trainer.frameworks.registry import framework_of
from trainer.launch_scripts.variables import THREADS, environment
from trainer.recipe import Recipe


def rank_variables(recipe: Recipe) -> dict[str, str]:
    """Returns {name: value}, not yet expanded: the user's variables, those that the framework requires, the recipe's.

    The number of threads is the user's if the recipe does not set it.
    """
    ours = environment(recipe)
    if recipe.trainer is None:
        return {**framework_of(recipe).variables(recipe), **ours}
    if "threads_per_rank" not in recipe.knobs:
        ours.pop(THREADS, None)
    return {**recipe.trainer.env, **framework_of(recipe).variables(recipe), **ours}
