"""What a study ran on: versions and host, read without importing any of it."""

from __future__ import annotations

import os
import platform
from importlib import metadata

PACKAGES = ("moe-autotune", "torch", "megatron-core", "transformer-engine", "optuna")


def version() -> str:
    """This program's version, as installed."""
    return installed("moe-autotune") or "unknown"


def environment() -> dict[str, str]:
    """Name → version of what decides a measurement, and the host; absent packages are left out."""
    versions = {name: found for name in PACKAGES if (found := installed(name))}
    return {
        **versions,
        "python": platform.python_version(),
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": str(len(os.sched_getaffinity(0))),
    }


def installed(package: str) -> str | None:
    """A package's version; None where it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
