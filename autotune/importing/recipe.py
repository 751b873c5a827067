"""Builds the recipe from the parts that a file gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from autotune.importing.environment import Environment, sorted_out
from autotune.importing.found import Found, ImportOptions
from autotune.importing.gpu import GPU, Gpu, gpu_of, gpus_of_a_node
from trainer.above_peak import above_peak
from trainer.errors import BadInputError, Problem, refused
from trainer.frameworks.presets import same_preset
from trainer.launch_scripts.jobs import job_settings
from trainer.recipe import Recipe
from trainer.recipe.architecture import Architecture
from trainer.recipe.knobs import KNOBS
from trainer.recipe.load import recipe_from
from trainer.recipe.models import presets
from trainer.recipe.names import safe_name
from trainer.recipe.sections import TuneSettings
from trainer.recipe.source import Source


@dataclass(frozen=True, kw_only=True)
class Imported:
    """An imported recipe, the parts it was built from, and the values that it could not keep."""

    recipe: Recipe
    found: Found
    environment: Environment
    changed: Mapping[
        str, tuple[Any, Any]
    ]  # argument of the trainer → (its value in the file, its value with the recipe)


def built(found: Found, options: ImportOptions) -> Imported:
    """Returns the recipe. Raises BadInputError for what neither the file nor the user gives."""
    started = found.started
    environment = sorted_out(started.env)
    knobs = {**found.reading.knobs, **environment.knobs}
    problems = list(started.problems)
    parts: dict[str, Any] = {}
    for name, part in (("gpu", gpu_of), ("nodes", _nodes), ("model", _model)):
        try:
            parts[name] = part(found, options)
        except BadInputError as error:
            problems += error.problems
    if problems:
        for note in found.notes:
            options.say(note)
        raise BadInputError(*problems)
    data: dict[str, Any] = {
        "name": options.name or safe_name(Path(options.file).stem),
        "model": parts["model"],
        "cluster": {"gpu": parts["gpu"], **_of_nodes(parts["nodes"], parts["gpu"], found, options)},
    }
    reader = found.framework.reader if found.framework else None
    for name, value in knobs.items():
        section = data.setdefault(KNOBS[name].section, {})
        if value != KNOBS[name].default or KNOBS[name].section != "knobs" or (reader and reader.keeps_defaults):
            section[name] = list(value) if isinstance(value, tuple) else value
    if reader and (frozen := reader.frozen(found.command)):
        data["tune"] = {"freeze": [*TuneSettings().freeze, *frozen]}
    if found.framework is not None and reader is not None:
        launcher = _launcher(found, data["cluster"]["nodes"])
        data["burst"] = {"engine": "command"} | ({"launcher": launcher} if launcher else {})
        trainer = {
            "kind": found.framework.name,
            "version": reader.checkout_version(found.command, started.setup),
            "command": list(found.command),
            "env": dict(environment.trainer),
            "setup": list(started.setup),
            "expand": [word for word in started.expand if word in (*found.command, *environment.trainer.values())],
        }
        data["trainer"] = {name: value for name, value in trainer.items() if value}
    recipe = recipe_from(Source(name=options.file, data=data))
    doubts = above_peak(recipe, reported=found.reading.reported_tflops)
    reading = replace(found.reading, notes=(*found.reading.notes, *doubts))
    return Imported(recipe=recipe, found=replace(found, reading=reading), environment=environment, changed={})


def _launcher(found: Found, nodes: int) -> str | dict[str, Any] | None:
    """Returns launcher Slurm, with the job and container of the script, if it runs under Slurm on several nodes or has
    such settings; else None."""
    started = found.started
    if settings := {**job_settings(started.headers), **started.container.settings()}:
        return {"slurm": settings}
    of_slurm = bool(started.headers) or any(each.name in ("srun", "sbatch", "salloc") for each in started.launchers)
    return "slurm" if of_slurm and nodes > 1 else None


def with_changes(imported: Imported, changed: Mapping[str, tuple[Any, Any]]) -> Imported:
    return replace(imported, changed=changed)


def _nodes(found: Found, options: ImportOptions) -> int | None:
    """Returns the number of nodes; None if it follows from the number of tasks.

    Raises BadInputError if neither is known.
    """
    nodes = options.nodes or found.started.sizes.nodes
    if nodes is None and not found.started.sizes.tasks:
        raise refused(options.file, "it does not say on how many nodes", "--nodes N")
    return nodes


def _of_nodes(nodes: int | None, gpu: Gpu, found: Found, options: ImportOptions) -> dict[str, int]:
    per_node = options.gpus_per_node or found.started.sizes.gpus_per_node or gpus_of_a_node(gpu)
    if per_node is None:
        raise refused(options.file, "it does not say how many GPUs a node has", "--gpus-per-node N")
    if nodes is None and found.started.sizes.tasks and found.started.sizes.tasks % per_node == 0:
        nodes = found.started.sizes.tasks // per_node
    if nodes is None:
        raise refused(options.file, "it does not say on how many nodes", "--nodes N")
    if nodes > 1 and not isinstance(gpu, str) and "network_gbit_s" not in gpu:
        raise refused(GPU, f"no network_gbit_s, and there are {nodes} nodes", "add network_gbit_s: N, Gbit/s per GPU")
    return {"nodes": nodes, "gpus_per_node": per_node}


def _model(found: Found, options: ImportOptions) -> str | dict[str, Any]:
    """Returns the name of the preset that is this model; else the fields that are not at their default."""
    if found.reading.preset:
        return found.reading.preset
    fields = {**found.reading.model, **_given_fields(options)}
    if not fields.get("vocab_size"):
        raise refused(
            options.file, "it does not say how large the vocabulary is: the tokenizer decides", "--vocab-size N"
        )
    try:
        model = Architecture.model_validate(fields)
    except ValueError as error:
        raise BadInputError(
            Problem(where=f"{options.file} model", what=str(error).replace("\n", " "), hint="correct it with --set")
        ) from None
    return same_preset(model) or _named_as_presets(model).model_dump(mode="json", exclude_defaults=True)


def _named_as_presets(model: Architecture) -> Architecture:
    """Returns the model with its experimental attention also named in `hybrid`: as in a preset with the same attention,
    else as `all VARIANT`."""
    mixers = ("experimental_attention_variant", "linear_attention_freq")
    if model.experimental_attention_variant is None or model.hybrid is not None:
        return model
    alike = (each for each in presets().values() if all(getattr(each, n) == getattr(model, n) for n in mixers))
    named = next((preset.hybrid for preset in alike), None) or f"all {model.experimental_attention_variant}"
    return model.model_copy(update={"hybrid": named})


def _given_fields(options: ImportOptions) -> dict[str, Any]:
    """Returns the fields of the model that --set gives."""
    return {name: yaml.safe_load(value) for name, value in options.given.items() if name in Architecture.model_fields}
