"""Makes a machine file of a probe: the factors that its rows give, and the keys with which a simulation shows the same.

The same rows are played on simulated machines, from the published one on: a factor means something only against what
the same rows teach of a machine whose keys are known. Rows of memory and copies are keys of the simulation themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.probe.document import probed_surrogate
from autotune.twin.learning import DIGITS, Key, Twin, twin_of_lesson
from policies.surrogate.prior import lesson_of
from trainer.engines.simulated.probe import play_probe
from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine
from trainer.recipe.machine_file import MachineFile

SOURCE = "a probe"
SEED = 1  # of the noise of the published machine, which has next to none


def twin_of_probe(recipe: Recipe, rows: Sequence[Row], *, name: str, versions: Mapping[str, str]) -> Twin:
    """Returns the twin of the cluster that the rows were measured on."""
    planned = [_unmeasured(row) for row in rows]

    def played(machine: Machine) -> list[Row]:
        return play_probe(_on(recipe, machine), planned, seed=SEED).rows

    twin = twin_of_lesson(
        lesson_of(probed_surrogate(rows, recipe), study=SOURCE),
        name=name,
        gpu=recipe.cluster.gpu_name,
        versions=versions,
        played=lambda machine: probed_surrogate(played(machine), recipe).theta,
    )
    return _with_keys(twin, _own_keys(rows, played(Machine())))


def _on(recipe: Recipe, machine: Machine) -> Recipe:
    settings = recipe.burst.model_copy(update={"engine": "simulated", "machine": machine})
    return recipe.model_copy(update={"burst": settings})


def _unmeasured(row: Row) -> Row:
    return Row(group=row.group, kind=row.kind, name=row.name, unit=row.unit, changes=row.changes, sizes=row.sizes)


def _own_keys(rows: Sequence[Row], published: Sequence[Row]) -> dict[str, float]:
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


def _with_keys(twin: Twin, own: Mapping[str, float]) -> Twin:
    data = twin.file.model_dump()
    for key, value in own.items():
        section, name = key.split(".")
        data[section][name] = value
    keys = {key: Key(value=value, low=value, high=value, factors=()) for key, value in own.items()}
    return replace(twin, file=MachineFile.model_validate(data), keys={**twin.keys, **keys})
