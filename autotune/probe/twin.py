"""Makes a machine file from a probe: the factors by its rows, and the keys with which a simulation gives the same rows.

The rows are also simulated, first on the published machine: estimate and simulation differ, so a factor is compared
with the factor that the same rows give on a machine whose keys are known. Rows of memory and copies are keys
of the simulation themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.probe.document import probed_surrogate
from autotune.twin.learning import Key, Twin, twin_of_lesson
from autotune.twin.probed import own_keys, probe_on
from policies.surrogate.prior import lesson_of
from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine
from trainer.recipe.machine_file import MachineFile

SOURCE = "a probe"


def twin_of_probe(recipe: Recipe, rows: Sequence[Row], *, name: str, versions: Mapping[str, str]) -> Twin:
    """Returns the twin of the cluster that the rows were measured on."""
    twin = twin_of_lesson(
        lesson_of(probed_surrogate(rows, recipe), study=SOURCE),
        name=name,
        gpu=recipe.cluster.gpu_name,
        versions=versions,
        simulated=lambda machine: probed_surrogate(probe_on(recipe, rows, machine), recipe).theta,
    )
    return _with_keys(twin, own_keys(rows, probe_on(recipe, rows, Machine())))


def _with_keys(twin: Twin, own: Mapping[str, float]) -> Twin:
    data = twin.file.model_dump()
    for key, value in own.items():
        section, name = key.split(".")
        data[section][name] = value
    keys = {key: Key(value=value, low=value, high=value, factors=()) for key, value in own.items()}
    return replace(twin, file=MachineFile.model_validate(data), keys={**twin.keys, **keys})
