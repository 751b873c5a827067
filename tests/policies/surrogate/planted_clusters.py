"""Clusters whose constants are known: evidence made by estimates at planted factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from policies.surrogate.evidence import Evidence, RankParts
from policies.surrogate.factors import move_constants
from policies.surrogate.step_parts import parts_at
from tests.policies.drawn import gpu_recipe
from trainer.estimate.candidates import tabulate
from trainer.estimate.time.constants import constants
from trainer.estimate.time.estimate import stages_of
from trainer.estimate.time.layer_time import imbalance
from trainer.recipe import Recipe

FLEX: dict[str, Any] = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
RECIPES = [
    gpu_recipe(),
    gpu_recipe({"expert_model_parallel_size": 8}),
    gpu_recipe({"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_model_parallel_size": 8}),
    gpu_recipe({"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 8, "micro_batch_size": 2} | FLEX),
]
OTHER = gpu_recipe({"pipeline_model_parallel_size": 4, "expert_model_parallel_size": 4, "micro_batch_size": 2} | FLEX)


def true_step_s(recipe: Recipe, theta: Mapping[str, float]) -> float:
    return float(stages_of(tabulate([recipe]), constants=move_constants(theta)).step[0])


def evidence(recipes: Sequence[Recipe], theta: Mapping[str, float], *, traced: bool = True) -> list[Evidence]:
    """Returns evidence without noise; both ends of the pipeline are traced."""
    return [_evidence(number, recipe, theta, traced=traced) for number, recipe in enumerate(recipes)]


def _evidence(number: int, recipe: Recipe, theta: Mapping[str, float], *, traced: bool) -> Evidence:
    table = tabulate([recipe])
    stages = stages_of(table, constants=move_constants(theta))
    ends = np.array([0, stages.busy.shape[1] - 1])
    load = np.broadcast_to(imbalance(table, {**constants(), **move_constants(theta)}), (1,)).repeat(2)
    parts = parts_at(stages, np.zeros(2, dtype=np.int64), ends, load=load)
    ranks = tuple(
        RankParts(pipeline_rank=int(rank), seconds={name: float(part[at]) for name, part in parts.items()})
        for at, rank in enumerate(ends)
    )
    return Evidence(
        number=number, recipe=recipe, step_s=float(stages.step[0]), deviation=0.005, ranks=ranks if traced else ()
    )
