"""Limits the length of a study's probe by the cost of the study."""

from __future__ import annotations

from policies.constants import constant
from trainer.estimate.time.estimate import estimate_time
from trainer.microbenchmarks.group import PROBE_S
from trainer.microbenchmarks.shapes import probed_nodes
from trainer.recipe import Recipe
from trainer.recipe.machine import Startup

SHARE, MIN_S = constant("probe_share"), constant("probe_least_s")


def probe_s(recipe: Recipe, *, budget: int, max_gpu_hours: float | None) -> float | None:
    """Returns how many seconds a probe may take, start-up included, at most PROBE_S. None where the allowed share of
    the study is too short for one, and on CPUs, whose bursts are as short as a probe.

    The cost of a study is `max_gpu_hours`, or that of `budget` bursts of the given recipe by estimate, if less.
    """
    if recipe.hardware.is_cpu:
        return None
    study_s = budget * _burst_s(recipe) * recipe.world_size
    if max_gpu_hours is not None:
        study_s = min(study_s, 3600 * max_gpu_hours)
    seconds = min(SHARE * study_s / probed_ranks(recipe), PROBE_S)
    return seconds if seconds >= MIN_S else None


def probed_ranks(recipe: Recipe) -> int:
    return probed_nodes(recipe) * recipe.ranks_per_node


def _burst_s(recipe: Recipe) -> float:
    """Returns the predicted seconds of a burst: its steps, and the default start-up time of a simulated cluster."""
    settings, startup = recipe.burst, Startup()
    steps = settings.warmup_steps + settings.measure_steps + settings.trace_steps
    return startup.launch_s + startup.first_step_s + steps * estimate_time(recipe).step_s
