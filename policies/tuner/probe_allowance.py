"""Limits the cost of a study's probe, and from that its length."""

from __future__ import annotations

from policies.constants import constant
from trainer.estimate.time.estimate import estimate_time
from trainer.microbenchmarks.group import PROBE_S
from trainer.microbenchmarks.shapes import probed_nodes
from trainer.recipe import Recipe
from trainer.recipe.machine import Startup

SHARE, LEAST_S = constant("probe_share"), constant("probe_least_s")


def probe_s(recipe: Recipe, *, budget: int, max_gpu_hours: float | None) -> float | None:
    """Returns how long a probe may take, start-up included; None where a twentieth of the study is too little for one,
    and on CPUs, whose bursts are as short.

    A study may spend `max_gpu_hours`, or `budget` bursts as the estimate prices the recipe as given.
    """
    if recipe.hardware.is_cpu:
        return None
    study_s = budget * _burst_s(recipe) * recipe.world_size
    if max_gpu_hours is not None:
        study_s = min(study_s, 3600 * max_gpu_hours)
    seconds = min(SHARE * study_s / probed_ranks(recipe), PROBE_S)
    return seconds if seconds >= LEAST_S else None


def probed_ranks(recipe: Recipe) -> int:
    return probed_nodes(recipe) * recipe.ranks_per_node


def _burst_s(recipe: Recipe) -> float:
    """Returns the predicted length of a burst: its steps, and starting ranks as simulated clusters do by default."""
    settings, startup = recipe.burst, Startup()
    steps = settings.warmup_steps + settings.measure_steps + settings.trace_steps
    return startup.launch_s + startup.first_step_s + steps * estimate_time(recipe).step_s
