"""The experts that the router picks: popularities drawn once per run, drifting from step to step, and the resulting
loads. Nothing is drawn where the recipe forces balance. Loads are of EP ranks over the mean: 1.3 is 30 % more
tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trainer.recipe.machine import Machine
from trainer.recipe.schema import Recipe

SEED = 20_26
TOKENS = 256  # tokens drawn to find the destinations of a token's copies

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The loads of a run.

    hottest: float64[L], of the hottest EP rank in each decoder layer (1 in dense ones); own: float64[L, EP], of every
    rank; drifting: float64[S], the mean of `hottest` in each of S steps, relative to that of the run.
    """

    hottest: Floats
    own: Floats
    drifting: Floats


@dataclass(frozen=True, kw_only=True)
class Copies:
    """The destinations of one token's copies, on average: how many different ranks and domains (the token's own counted
    if it is among them)."""

    ranks: float
    domains: float


def routing_of(recipe: Recipe, machine: Machine, *, steps: int = 1) -> Routing:
    model, ep = recipe.architecture, recipe.parallelism.expert_model_parallel_size
    moe = np.array(model.moe_layers, dtype=bool)
    layers, experts = len(moe), model.num_moe_experts or 1
    even = recipe.knob("moe_router_force_load_balancing") or ep == 1 or not moe.any()
    skew = machine.routing.skew
    if even or not skew:
        return Routing(hottest=np.ones(layers), own=np.ones((layers, ep)), drifting=np.ones(steps))
    rng = np.random.default_rng(SEED)
    base = _popularity(rng, (layers, experts), skew)
    own = _loads(base, ep)
    hottest = np.where(moe, own.max(axis=1), 1.0)
    drift = machine.routing.drift
    mean = hottest[moe].mean()
    drifting = np.empty(steps)
    for step in range(steps):
        moved = (1 - drift) * base + drift * _popularity(rng, base.shape, skew)
        drifting[step] = _loads(moved, ep).max(axis=1)[moe].mean() / mean
    capacity = recipe.knob("moe_expert_capacity_factor")
    if capacity:  # tokens above the capacity are dropped
        hottest = np.minimum(hottest, max(1.0, float(capacity)))
    return Routing(hottest=hottest, own=np.where(moe[:, None], own, 1.0), drifting=drifting)


def _popularity(rng: np.random.Generator, shape: tuple[int, ...], skew: float) -> Floats:
    """Returns the loads of experts over the mean: a gamma distribution with the relative standard deviation `skew`."""
    drawn = rng.gamma(1 / skew**2, skew**2, shape)
    found: Floats = drawn / drawn.mean(axis=-1, keepdims=True)
    return found


def _loads(popularity: Floats, ep: int) -> Floats:
    """Returns the loads of ranks, [..., EP]: neighbouring experts are on one rank."""
    layers, experts = popularity.shape
    whole = popularity[:, : experts // ep * ep].reshape(layers, ep, -1)
    found: Floats = whole.mean(axis=-1)
    return found


@cache
def copies_of(experts: int, topk: int, groups: int | None, group_topk: int | None, ep: int, domains: int) -> Copies:
    """Returns the destinations of a token's copies, by drawing tokens: experts are on `ep` ranks in `domains`
    domains."""
    rng = np.random.default_rng(SEED)
    scores = rng.random((TOKENS, experts))
    if groups and group_topk and group_topk < groups:
        best = np.sort(scores.reshape(TOKENS, groups, -1), axis=-1)[:, :, -2:].sum(axis=-1)
        kept = np.argsort(best, axis=1)[:, -group_topk:]
        allowed = np.zeros((TOKENS, groups), dtype=bool)
        np.put_along_axis(allowed, kept, True, axis=1)
        scores = np.where(np.repeat(allowed, experts // groups, axis=1), scores, -1.0)
    picked = np.argpartition(scores, -topk, axis=1)[:, -topk:]
    return Copies(ranks=_different(picked * ep // experts), domains=_different(picked * domains // experts))


def _different(places: NDArray[np.int64]) -> float:
    """Returns the mean number of different places in a row."""
    ordered = np.sort(places, axis=1)
    return float(1 + (np.diff(ordered, axis=1) > 0).sum(axis=1).mean())
