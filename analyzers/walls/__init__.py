"""The walls: one file each, found by being in this folder.

A wall's module has `KIND`, its name and how it is shown, and `find(job)`, which returns its finding, None if the job
does not show it. Its docstring is also its page in the documentation: what it is / how it shows / what it costs / when
it does not apply / source.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from functools import cache
from types import ModuleType

from msgspec.structs import replace

from analyzers.diagnosis import Wall, WallFinding
from analyzers.ranks.job import Job
from analyzers.wall_kind import WallKind


@cache
def walls() -> tuple[ModuleType, ...]:
    """Returns the module of every wall, in the order of their kinds."""
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    return tuple(sorted(modules, key=lambda module: (module.KIND.order, module.KIND.wall)))


@cache
def wall_kinds() -> dict[Wall, WallKind]:
    """Returns the presentation of every wall, in order. Raises ValueError if two walls colour the same segment."""
    kinds = [module.KIND for module in walls()]
    claimed = Counter(segment for kind in kinds for segment in kind.segments)
    if twice := [segment for segment, count in claimed.items() if count > 1]:
        raise ValueError(f"several walls colour the segments {', '.join(twice)}: leave each to one of their files")
    return {kind.wall: kind for kind in kinds}


def find_walls(job: Job) -> list[WallFinding]:
    """Returns the finding of each wall in the job, the one that could give back most first."""
    found = (module.find(job) for module in walls())
    bounded = [replace(f, speedup_bound=_speedup(f.share)) for f in found if f is not None]
    return sorted(bounded, key=lambda f: (-f.recoverable_us, f.wall))


def _speedup(share: float) -> float | None:
    """Returns T / (T - R) - 1, given R / T; None if that is not finite."""
    return 1 / (1 - share) - 1 if share < 1 else None
