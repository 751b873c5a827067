"""The packages of the extra `megatron`, which bursts on this machine and dry runs need and other commands do not."""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.util import find_spec

from packaging.version import Version

from trainer.errors import ToolError
from trainer.recipe.settings import Settings

NEEDS_TRITON = Version("0.18")  # the first Megatron-Core that cannot be imported without it


def trains_here(recipe: Settings) -> bool:
    """Returns whether this environment's own Megatron-Core runs the recipe's bursts."""
    return recipe.burst.engine == "megatron" and recipe.burst.launcher_kind == "local"


def refuse_without_megatron(purpose: str) -> None:
    """Raises ToolError if torch, Megatron-Core or what that imports is not installed here; `purpose` is what needs
    it."""
    if missing := missing_packages():
        raise ToolError(
            f"{purpose} needs {' and '.join(missing)}, which this environment does not have",
            hint="pip install 'moe-autotune[megatron]'; with Transformer Engine 'moe-autotune[gpu]'",
        )


def missing_packages() -> list[str]:
    """Returns the names of the packages that are missing; [] if engine megatron can start here."""
    missing = [package for package, module in (("torch", "torch"), ("megatron-core", "megatron")) if not _has(module)]
    if "megatron-core" not in missing and sys.platform == "linux" and _core() >= NEEDS_TRITON and not _has("triton"):
        missing.append("triton")
    return missing


def _has(module: str) -> bool:
    return find_spec(module) is not None


def _core() -> Version:
    try:
        return Version(Version(metadata.version("megatron-core")).base_version)
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        return NEEDS_TRITON
