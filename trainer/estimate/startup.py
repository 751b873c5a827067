"""Seconds that the start of a burst takes, by the recipe's machine file or the defaults of one."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.estimate.candidates import one
from trainer.estimate.memory.estimate import memory_of
from trainer.recipe.machine import Machine
from trainer.recipe.schema import Recipe

STATE = ("weights", "gradients", "master_weights", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Startup:
    """Seconds to start ranks, and to build the model on ranks that are up, with the time that the first step takes
    longer than others."""

    launch_s: float
    build_s: float


def startup_of(recipe: Recipe) -> Startup:
    """Returns the start-up times of a burst of the recipe: those of its machine file if it has one."""
    assumed = (recipe.burst.machine or Machine()).startup
    table = memory_of(one(recipe))
    state_gib = sum(float(table.by_part[part][0, table.hottest[0]]) for part in STATE)
    return Startup(
        launch_s=assumed.launch_s + assumed.per_1024_ranks_s * recipe.world_size / 1024,
        build_s=assumed.build_s_per_gib * state_gib + assumed.first_step_s,
    )
