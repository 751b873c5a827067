"""Finds the fewest nodes on which a model fits: those on which some legal setting fits by the upper bound."""

from __future__ import annotations

from trainer.estimate.learned import TABLES, LearnedCluster
from trainer.estimate.plan.search import can_fit
from trainer.recipe.schema import Recipe

MAX_GPUS = 16384
# results so far: each search takes seconds, and a report needs the same one in several places
_FOUND: dict[tuple[str, int, str], int | None] = {}


def fewest_nodes(recipe: Recipe, *, above: int = 0, learned: LearnedCluster = TABLES) -> int | None:
    """Returns the fewest nodes, in doublings from one node and more than `above`; None if not even MAX_GPUS are
    enough. Batch and model are unchanged."""
    key = recipe.model_dump_json(), above, learned.name
    if key not in _FOUND:
        _FOUND[key] = _fewest(recipe, above, learned)
    return _FOUND[key]


def _fewest(recipe: Recipe, above: int, learned: LearnedCluster) -> int | None:
    nodes, each = 1, recipe.world_size // recipe.cluster.nodes
    while nodes * each <= MAX_GPUS:
        cluster = recipe.cluster.model_copy(update={"nodes": nodes})
        if nodes > above and can_fit(recipe.model_copy(update={"cluster": cluster}), learned=learned):
            return nodes
        nodes *= 2
    return None
