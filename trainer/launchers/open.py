"""Opens the launcher that a recipe names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from trainer.errors import ToolError
from trainer.launchers import Launcher
from trainer.launchers.hosts.launcher import hosts_launcher
from trainer.launchers.local import LocalLauncher
from trainer.launchers.slurm.launcher import slurm_launcher
from trainer.recipe import Recipe
from trainer.recipe.launching import hosts_settings, slurm_settings

# kind -> function that opens it, given the recipe and a folder of this study alone
LAUNCHERS: dict[str, Callable[[Recipe, Path], Launcher]] = {
    "local": lambda recipe, home: _local(recipe),
    "slurm": slurm_launcher,
    "hosts": hosts_launcher,
}


def _local(recipe: Recipe) -> Launcher:
    if recipe.cluster.nodes > 1:
        raise ToolError(
            f"launcher local starts ranks on this machine only, and the recipe asks for {recipe.cluster.nodes} nodes",
            hint="set burst.launcher to slurm or {hosts: [n1, n2]}, cluster.nodes to 1, or burst.engine to simulated",
        )
    return LocalLauncher()


def nodes_of(recipe: Recipe, environ: Mapping[str, str] = os.environ) -> int | None:
    """Returns the number of nodes on which the launcher can start ranks; None if nothing here limits it."""
    settings = hosts_settings(recipe.burst.launcher)
    if recipe.burst.launcher_kind == "local":
        return 1
    if settings is not None:
        return len(settings.hosts)
    held = environ.get("SLURM_JOB_NUM_NODES")
    in_job = recipe.burst.launcher_kind == "slurm" and slurm_settings(recipe.burst.launcher).job == "allocation"
    return int(held) if in_job and held else None


def open_launcher(recipe: Recipe, home: Path) -> Launcher:
    """Returns the recipe's launcher.

    Raises ToolError if it does not exist or cannot start the recipe's ranks. `home`: the folder in which it keeps what
    it learns about machines.
    """
    kind = recipe.burst.launcher_kind
    if kind not in LAUNCHERS:
        raise ToolError(f"there is no launcher {kind}", hint=f"set burst.launcher to {' or '.join(LAUNCHERS)}")
    return LAUNCHERS[kind](recipe, home)
