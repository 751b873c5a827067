"""A probe's rows as simulated machines show them, and the keys of the simulation that rows measure by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.engines.simulated.probe import play_probe
from trainer.microbenchmarks.row import Row, unmeasured
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine

SEED = 1  # of the noise of the simulated machine, which has next to none
DIGITS = 3


def probe_on(base: Recipe, rows: Sequence[Row], machine: Machine) -> list[Row]:
    """Returns what a probe's measured rows are on a simulated machine."""
    settings = base.burst.model_copy(update={"engine": "simulated", "machine": machine})
    planned = [unmeasured(row) for row in rows]
    return play_probe(base.model_copy(update={"burst": settings}), planned, seed=SEED).rows


def own_keys(rows: Sequence[Row], published: Sequence[Row]) -> dict[str, float]:
    """Returns the keys that rows measure by themselves, against the published machine."""
    pairs = {ours.kind: (ours.measured, theirs.measured) for ours, theirs in zip(rows, published, strict=True)}
    found: dict[str, float] = {}
    for kind, (ours, theirs) in pairs.items():
        if ours is None or theirs is None:
            continue
        if kind == "layer_kept" and theirs:
            found["memory.activations"] = ours / theirs
        elif kind == "copy" and ours:
            found["links.pcie"] = theirs / ours
        elif kind == "outside":
            found["memory.outside_gib"] = max(0.0, ours - theirs)
        elif kind in ("fragmentation", "second_step"):
            found[{"fragmentation": "memory.fragmentation", "second_step": "memory.second_step_gib"}[kind]] = ours
    return {key: round(value, DIGITS) for key, value in found.items()}
