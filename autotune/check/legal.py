"""Refuses a recipe that violates a rule, names an unknown engine or launcher, or cannot run on this machine, before it
uses any resources."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trainer.engines.command.lines import patterns_with
from trainer.errors import BadInputError, Problem, ToolError
from trainer.extras import refuse_without_megatron, trains_here
from trainer.frameworks import framework_of
from trainer.launchers.hosts.launcher import HostsLauncher
from trainer.launchers.open import LAUNCHERS, open_launcher
from trainer.launchers.slurm import study_job
from trainer.launchers.slurm.launcher import SlurmLauncher
from trainer.legality import findings_of
from trainer.recipe import Recipe
from trainer.recipe.engines import ENGINES
from trainer.recipe.rules import FindingKind
from trainer.recipe.source import nearest

SIGNS = {"nvidia": ("nvidia[0-9]*", "nvidia-smi"), "amd": ("kfd", "rocm-smi")}  # vendor -> device, program
RANKS_HERE = ("megatron", "command")  # engines whose ranks a launcher starts


def refuse_illegal(recipe: Recipe, *, where: str) -> None:
    """Raises BadInputError with every problem at once; `where` is the file the recipe came from."""
    problems = [*_runners(recipe, where), *_trainer(recipe, where), *_rules(recipe, where)]
    if problems:
        raise BadInputError(*problems)


def refuse_unable(recipe: Recipe) -> None:
    """Raises ToolError if this machine, or the nodes that the launcher finds, cannot run the recipe's bursts."""
    refuse_without_gpus(recipe)
    if trains_here(recipe):
        refuse_without_megatron("a burst of engine megatron on this machine")
    refuse_without_nodes(recipe)


def refuse_without_gpus(recipe: Recipe, *, devices: Path = Path("/dev")) -> None:
    """Raises ToolError if a recipe trains on local GPUs and this machine has neither devices nor a driver."""
    if recipe.burst.engine not in RANKS_HERE or recipe.burst.launcher_kind != "local" or recipe.hardware.is_cpu:
        return
    signs = [sign for vendor, sign in SIGNS.items() if recipe.hardware.vendor in (vendor, None)] or [*SIGNS.values()]
    if not any(any(devices.glob(device)) or shutil.which(program) for device, program in signs):
        raise ToolError(
            f"the recipe trains on {recipe.cluster.gpu_name} GPUs, and this machine has none",
            hint="run it on a node that has them (`moe-autotune doctor` says what is missing), try the tuner on CPUs "
            "with a packaged example, or plan with burst.engine simulated",
        )


def refuse_without_nodes(recipe: Recipe) -> None:
    """Raises ToolError if the launcher cannot start the recipe's ranks: several nodes with launcher local, no Slurm, or
    no allocation that is large enough. With `tune.proxy_nodes`, one node is enough."""
    if recipe.burst.engine not in RANKS_HERE or study_job.is_wanted(recipe):
        return
    nodes = recipe.cluster.nodes if recipe.tune.proxy_nodes is None else 1
    cluster = recipe.cluster.model_copy(update={"nodes": nodes})
    launcher = open_launcher(recipe.model_copy(update={"cluster": cluster}), Path())
    if isinstance(launcher, SlurmLauncher):
        launcher.allocation(nodes)
    if isinstance(launcher, HostsLauncher):
        launcher.hosts(nodes)


def _runners(recipe: Recipe, where: str) -> Iterator[Problem]:
    runners: tuple[tuple[str, str, Sequence[str]], ...] = (
        ("engine", recipe.burst.engine, tuple(ENGINES)),
        ("launcher", recipe.burst.launcher_kind, tuple(LAUNCHERS)),
    )
    for key, name, known in runners:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
            yield Problem(where=f"{where}: burst.{key}", what=f"{name!r} is not a {key} of this version", hint=hint)


def _trainer(recipe: Recipe, where: str) -> Iterator[Problem]:
    """Yields problems of engine `command`: a missing trainer, mock data of a framework that has none, or patterns that
    cannot be read."""
    if recipe.burst.engine != "command":
        return
    if recipe.trainer is None:
        yield Problem(
            where=f"{where}: trainer",
            what="burst.engine is command, and no trainer is named",
            hint="write trainer.command, what one rank runs, or make the recipe with `moe-autotune import YOUR_SCRIPT`",
        )
        return
    framework = framework_of(recipe)
    if recipe.trainer.mock_data and not framework.takes_mock_data:
        yield Problem(
            where=f"{where}: trainer.mock_data",
            what=f"kind {framework.name} has no mock-data arguments here",
            hint="write its own arguments for that into trainer.command, and remove mock_data",
        )
    try:
        patterns_with(framework.log_patterns, recipe.trainer.patterns)
    except BadInputError as error:
        yield from (replace(problem, where=f"{where}: {problem.where}") for problem in error.problems)


def _rules(recipe: Recipe, where: str) -> Iterator[Problem]:
    for finding in findings_of(recipe):
        if finding.kind is FindingKind.ERROR:
            yield Problem(
                where=f"{where}: {', '.join(finding.knobs) or finding.rule}",
                what=f"{finding.message} [{finding.rule}]",
                hint=finding.hint or "no single knob fixes this: change the model or the cluster",
            )
