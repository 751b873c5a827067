"""Simulates a probe's rows on a machine, and takes from rows the keys that they measure directly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from trainer.engines.simulated.probe import simulate_probe
from trainer.microbenchmarks.row import Row, unmeasured
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine

SEED = 1  # seed of the simulated noise, which is almost zero
DIGITS = 3
# kind of row → the key that it measures, and its value from the means of the rows here and on the published machine
OWN: dict[str, tuple[str, Callable[[float, float], float]]] = {
    "layer_kept": ("memory.activations", lambda ours, theirs: ours / theirs),
    "copy": ("links.pcie", lambda ours, theirs: theirs / ours),
    "outside": ("memory.outside_gib", lambda ours, theirs: max(0.0, ours - theirs)),
    "fragmentation": ("memory.fragmentation", lambda ours, theirs: ours),
    "second_step": ("memory.second_step_gib", lambda ours, theirs: ours),
}


def probe_on(base: Recipe, rows: Sequence[Row], machine: Machine) -> list[Row]:
    """Returns the rows of a probe as measured on a simulated machine."""
    settings = base.burst.model_copy(update={"engine": "simulated", "machine": machine})
    planned = [unmeasured(row) for row in rows]
    return simulate_probe(base.model_copy(update={"burst": settings}), planned, seed=SEED).rows


def own_keys(rows: Sequence[Row], published: Sequence[Row]) -> dict[str, float]:
    """Returns the keys that rows measure directly, from their values here and on the published machine; rows of a kind
    are averaged."""
    found: dict[str, float] = {}
    for kind, (key, value) in OWN.items():
        pairs = [
            (ours.measured, theirs.measured) for ours, theirs in zip(rows, published, strict=True) if ours.kind == kind
        ]
        known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
        if known:
            found[key] = round(value(*(fmean(each) for each in zip(*known, strict=True))), DIGITS)
    return found
