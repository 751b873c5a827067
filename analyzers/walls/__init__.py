"""The walls: one file each, found by being in this folder.

A wall's module has `WALL`, its name, and `find(job)`, which returns its finding or None if the job shows nothing of
it. Its docstring is also its page in the documentation: what it is / how it shows / what it costs / when it does not
apply / source.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from msgspec.structs import replace

from analyzers.diagnosis import WallFinding
from analyzers.ranks.job import Job


@cache
def walls() -> tuple[ModuleType, ...]:
    """Returns the module of every wall, by name."""
    return tuple(importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))


def find_walls(job: Job) -> list[WallFinding]:
    """Returns each wall's finding in the job, the one that could give back most first."""
    found = (module.find(job) for module in walls())
    bounded = [replace(f, speedup_bound=_speedup(f.share)) for f in found if f is not None]
    return sorted(bounded, key=lambda f: (-f.recoverable_us, f.wall))


def _speedup(share: float) -> float | None:
    """Returns T / (T - R) - 1, given R / T."""
    return 1 / (1 - share) - 1 if share < 1 else None
