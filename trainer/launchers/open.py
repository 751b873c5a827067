"""The launcher a recipe names."""

from __future__ import annotations

from trainer.errors import ToolError
from trainer.launchers import Launcher
from trainer.launchers.local import LocalLauncher
from trainer.recipe import Recipe

LAUNCHERS = {"local": LocalLauncher}


def open_launcher(recipe: Recipe) -> Launcher:
    """ToolError for a launcher that does not exist."""
    name = recipe.burst.launcher
    if name not in LAUNCHERS:
        raise ToolError(f"there is no launcher {name}", hint=f"set burst.launcher to {' or '.join(LAUNCHERS)}")
    return LAUNCHERS[name]()
