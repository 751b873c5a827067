"""Reads the versions and the host that a study ran on, without importing the packages."""

from __future__ import annotations

import os
import platform
from importlib import metadata

PACKAGES = ("moe-autotune", "torch", "megatron-core", "megatron-bridge", "transformer-engine", "deep-ep", "optuna")


def version() -> str:
    """Returns the installed version of moe-autotune."""
    return installed("moe-autotune") or "unknown"


def environment() -> dict[str, str]:
    """Returns name → version of Python and each installed package that affects a measurement, and the host, its system
    and its usable cores."""
    versions = {name: found for name in PACKAGES if (found := installed(name))}
    return {
        **versions,
        "python": platform.python_version(),
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": str(len(os.sched_getaffinity(0))),
    }


def installed(package: str) -> str | None:
    """Returns the version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
