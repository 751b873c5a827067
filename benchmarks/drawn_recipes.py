"""Draws random legal recipes: a hand-tuned one of benchmarks/data with a few knobs changed."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from benchmarks.plan_experts import cells
from trainer.recipe import Recipe
from trainer.recipe.rules.check import errors_of

TRIES = 20
NO_RECOMPUTE: dict[str, Any] = {
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": None,
}
MOVES: dict[str, list[dict[str, Any]]] = {
    "recompute": [
        NO_RECOMPUTE,
        {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
            "recompute_modules": None,
        },
        {
            "recompute_granularity": "selective",
            "recompute_method": None,
            "recompute_num_layers": None,
            "recompute_modules": ("moe_act", "layernorm"),
        },
    ],
    "dispatcher": [
        {"moe_token_dispatcher_type": "alltoall"},
        {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"},
        {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
    ],
    "overlap": [{"overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": False}],
    "graphs": [{"cuda_graph_impl": "none", "cuda_graph_scope": None}],
    "micro batch": [{"micro_batch_size": size} for size in (1, 2, 4)],
    "expert parallel": [{"expert_model_parallel_size": size} for size in (4, 8, 16, 32, 64)],
    "tensor parallel": [
        {"tensor_model_parallel_size": 1, "sequence_parallel": False, "expert_tensor_parallel_size": 1},
        {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1},
    ],
}


@cache
def tuned() -> tuple[Recipe, ...]:
    """Returns one recipe of every task of `benchmarks.plan_experts`."""
    return tuple(recipes[0] for recipes in cells().values())


def draw_recipe(rng: Random) -> Recipe:
    """Returns a tuned recipe with up to three groups of knobs changed."""
    for _ in range(TRIES):
        recipe = rng.choice(tuned())
        for name in rng.sample(sorted(MOVES), rng.randint(0, 3)):
            moved = recipe.replace(rng.choice(MOVES[name]))
            recipe = recipe if errors_of(moved) else moved
        if not errors_of(recipe):
            return recipe
    raise AssertionError(f"no legal recipe in {TRIES} draws")
