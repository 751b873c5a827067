"""The launcher a recipe names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainer.errors import ToolError
from trainer.launchers import Launcher
from trainer.launchers.hosts.launcher import hosts_launcher
from trainer.launchers.local import LocalLauncher
from trainer.launchers.slurm.launcher import slurm_launcher
from trainer.recipe import Recipe

# kind -> how it is opened: by what the recipe says, and a folder of this study alone
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


def open_launcher(recipe: Recipe, home: Path) -> Launcher:
    """Returns the recipe's launcher. ToolError for one that does not exist. `home`: where it keeps what it learns about
    machines."""
    kind = recipe.burst.launcher_kind
    if kind not in LAUNCHERS:
        raise ToolError(f"there is no launcher {kind}", hint=f"set burst.launcher to {' or '.join(LAUNCHERS)}")
    return LAUNCHERS[kind](recipe, home)
