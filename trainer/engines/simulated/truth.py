"""The noise-free result of a recipe on a simulated machine: its throughput, or that it does not fit."""

from __future__ import annotations

from trainer.engines.simulated.engine import memory_of
from trainer.engines.simulated.step import Simulation
from trainer.recipe.machine import Machine
from trainer.recipe.schema import Recipe

# Raised by hand when `true_throughput` or an outcome of any recipe changes, which tests/trainer/engines/test_truth.py
# detects. Tables of the best known recipes and of earlier figures hold for one version only.
TRUTH_VERSION = 2


def simulated_step_s(recipe: Recipe, machine: Machine) -> float:
    """Returns the seconds per step, whether the recipe fits or not."""
    return Simulation(recipe, machine).step_us * 1e-6


def collected_us(recipe: Recipe, machine: Machine) -> float:
    """Returns the microseconds of a step that garbage collection takes."""
    return Simulation(recipe, machine).pauses_us


def true_throughput(recipe: Recipe, machine: Machine) -> float | None:
    """Returns tokens per second per GPU; None if the recipe does not fit. Faults of the machine are ignored."""
    simulation = Simulation(recipe, machine)
    limit = recipe.memory_limit_gib
    if limit is not None and memory_of(simulation).out_of_memory(limit):
        return None
    return simulation.tokens_per_s_per_gpu
