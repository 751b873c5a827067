"""Makes the starter recipe of `moe-autotune init`: `plan`'s first choice for a model and a cluster, with comments.

On CPUs, whose speeds are in no table, nothing is planned: the experts are spread over the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from pydantic import ValidationError

from autotune.estimate.machine import ChosenMachine, cluster_of
from autotune.init.written import written
from autotune.looks.quantities import gpu_or_rank
from trainer.errors import BadInputError, Problem, refused
from trainer.estimate.learned import LearnedCluster
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.plan.choices import Choice, choices
from trainer.estimate.plan.feasible import fewest_nodes
from trainer.estimate.plan.search import search
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe
from trainer.recipe.announced import announced
from trainer.recipe.architecture import Architecture
from trainer.recipe.hardware import known_hardware
from trainer.recipe.hugging_face import model_fields, read_config
from trainer.recipe.load import recipe_from
from trainer.recipe.models import presets
from trainer.recipe.names import safe_name
from trainer.recipe.rules import check
from trainer.recipe.rules.check import errors_of
from trainer.recipe.rules.mixers import engine_builds
from trainer.recipe.source import Source, nearest

Row = TypeVar("Row")
OFFLOADS = ("fine_grained_activation_offloading", "optimizer_cpu_offload")
MAX_SUGGESTIONS = 8  # suggestions of rules that are applied, one after the other


class InitDocument(TypedDict):
    """Document of `init --json`."""

    schema: int
    yaml: str  # the recipe, with its comments
    file: str | None  # the file that -o wrote; null: stdout
    unfit: str | None  # why no layout fits the cluster


@dataclass(frozen=True, kw_only=True)
class Starter:
    """A starter recipe. `text` has the comments; `unfit` says why no layout fits the cluster, None if one does."""

    recipe: Recipe
    text: str
    unfit: str | None


def starter(*, model: str, gpu: str, gpus: int, machine: ChosenMachine | None = None) -> Starter:
    """Returns the starter recipe. Raises BadInputError for an unknown model or GPU, or GPUs that do not fill whole
    nodes."""
    base = _with_suggestions(_base(model, gpu, gpus))
    named = str(Path(model).resolve()) if model.endswith(".json") else model
    if base.hardware.is_cpu:
        return Starter(recipe=base, text=written(base, model=named, because=()), unfit=None)
    cluster = cluster_of(machine)
    first = _first(base, cluster)
    recipe = _with_suggestions(first[0].recipe if first else base)
    unfit = None if first and first[0].fits else _unfit(recipe, cluster)
    said = (unfit,) if unfit else _expected(recipe, machine)
    return Starter(recipe=recipe, text=written(recipe, model=named, because=said), unfit=unfit)


def _first(base: Recipe, cluster: LearnedCluster) -> list[Choice]:
    """Returns `plan`'s first choice; if a choice without offload fits, the first of these, since offload is reported to
    spoil the first step (rules offload-first-iteration, optimizer-offload-loaded)."""
    kept = base.tune.model_copy(update={"freeze": (*base.tune.freeze, *OFFLOADS)})
    found = choices(search(base.model_copy(update={"tune": kept}), learned=cluster), 1)
    if not any(choice.fits for choice in found):
        return choices(search(base, learned=cluster), 1)
    return [replace(each, recipe=each.recipe.model_copy(update={"tune": base.tune})) for each in found]


def _base(model: str, gpu: str, gpus: int) -> Recipe:
    """Returns the recipe before planning: model, cluster and batch.

    Its engine is `simulated` if engine megatron cannot build the model.
    """
    if gpu in announced():
        fact, hint = announced()[gpu]
        raise BadInputError(Problem(where="--gpu", what=fact, hint=f"start from a recipe: {hint}"))
    hardware = _known(known_hardware(), gpu, "--gpu")
    experts = _model(model).num_moe_experts or 1
    per_node = gpus if hardware.is_cpu else min(gpus, hardware.gpus_per_node)
    if gpus % per_node:
        raise BadInputError(
            Problem(
                where="--gpus",
                what=f"{gpus} GPUs do not fill whole nodes of {per_node}",
                hint=f"use {gpus - gpus % per_node} or {gpus + per_node - gpus % per_node}",
            )
        )
    data: dict[str, Any] = {
        "name": f"{_short_name(model)}-{gpus}x{gpu}",
        "model": model,
        "cluster": {"gpu": gpu, "nodes": gpus // per_node, "gpus_per_node": per_node},
        "training": {"global_batch_size": max(256, gpus * 8), "precision": "fp32" if hardware.is_cpu else "bf16"},
        "parallelism": {"ep": next(ep for ep in (8, 4, 2, 1) if per_node % ep == 0 and experts % ep == 0)},
        "knobs": {"use_distributed_optimizer": True},
    }
    recipe = recipe_from(Source(name="init", data=data))
    if engine_builds(recipe):
        return recipe
    return recipe_from(Source(name="init", data=data | {"burst": {"engine": "simulated"}}))


def _with_suggestions(recipe: Recipe) -> Recipe:
    """Applies the suggestions of the rules that the recipe violates, except those that cause another error."""
    for _ in range(MAX_SUGGESTIONS):
        changed = (recipe.replace(finding.settled) for finding in check(recipe) if finding.settled)
        better = next((each for each in changed if len(errors_of(each)) <= len(errors_of(recipe))), None)
        if better is None:
            break
        recipe = better
    return recipe


def _unfit(recipe: Recipe, cluster: LearnedCluster) -> str:
    memory = estimate_memory(recipe, learned=cluster.memory)
    nodes = fewest_nodes(recipe, above=recipe.cluster.nodes, learned=cluster)
    unit = gpu_or_rank(recipe.cluster.gpu_name)
    more = f"{nodes * recipe.ranks_per_node} {unit}s are enough" if nodes else f"no number of {unit}s is enough"
    return (
        f"no layout fits {recipe.world_size} {unit}s by estimate: this one needs "
        f"{memory.upper_gib + memory.outside_gib:,.0f} GiB of {recipe.memory_limit_gib:.0f}; {more}"
    )


def _expected(recipe: Recipe, machine: ChosenMachine | None) -> tuple[str, ...]:
    cluster = cluster_of(machine)
    time, memory = estimate_time(recipe, learned=cluster), estimate_memory(recipe, learned=cluster.memory)
    outside = f" and {memory.outside_gib:.1f} for context and communication" if memory.outside_gib else ""
    rate = f"{time.tokens_per_s_per_gpu:,.0f} tokens/s/{gpu_or_rank(recipe.cluster.gpu_name)}"
    return (
        f"`moe-autotune plan`'s first choice: about {rate} by estimate,",
        f"peak {memory.peak_gib:.0f} GiB, upper bound {memory.upper_gib:.0f}{outside}, "
        f"of {recipe.memory_limit_gib:.0f}.",
        *((f"By {machine.words}.",) if machine else ()),
    )


def _model(name: str) -> Architecture:
    """Returns the architecture of a preset, or of a Hugging Face config.json."""
    if not name.endswith(".json"):
        return _known(presets(), name, "--model")
    fields = model_fields(read_config(Path(name), where=f"--model {name}"), where=name)
    try:
        return Architecture.model_validate(fields)
    except ValidationError as error:
        wrong = sorted({f"{each['loc'][0]}: {each['msg'].lower()}" for each in error.errors() if each["loc"]})
        raise refused(
            f"--model {name}", "; ".join(wrong), "correct the file, or write the model's own fields"
        ) from None


def _short_name(model: str) -> str:
    """Returns the preset's name; for a config.json the name of its folder, usually that of the model."""
    path = Path(model)
    return safe_name(path.resolve().parent.name) if path.suffix == ".json" else model


def _known(rows: Mapping[str, Row], name: str, where: str) -> Row:
    if name in rows:
        return rows[name]
    near = nearest(name, rows)
    hint = f"{f'did you mean {near}? ' if near else ''}there are {', '.join(rows)}"
    raise BadInputError(Problem(where=where, what=f"{name!r} is not known", hint=hint))
