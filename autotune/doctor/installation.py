"""Checks that all four packages come from one installation.

The packages have short names (`trainer`, `policies`), and another package of that name earlier on the path would be
imported instead and fail somewhere inside. No package of this project is imported here, because it may be another one.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("autotune", "policies", "trainer", "analyzers")


def shadowed() -> str | None:
    """Returns a message on packages that belong to another installation, and what to do; None if there are none."""
    home = Path(__file__).resolve().parents[2]
    found = {name: _place(name) for name in PACKAGES}
    foreign = {name: place for name, place in found.items() if place != home / name}
    if not foreign:
        return None
    lines = [
        f"package {name!r} is not there" if place is None else f"another {name!r} comes first: {place}"
        for name, place in foreign.items()
    ]
    return "\n".join(
        [
            f"moe-autotune in {home} cannot work with packages of another installation:",
            *(f"    {line}" for line in lines),
            "    → start it from a folder without a package of that name, take that folder off PYTHONPATH,",
            "      or install moe-autotune into its own virtual environment",
        ]
    )


def _place(package: str) -> Path | None:
    """Returns the folder of a package, or the file of a module of that name; None if there is neither."""
    spec = find_spec(package)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    place = folders[0] if folders else spec.origin
    return Path(place).resolve() if place else None
