"""Do all four packages come from one installation?

The packages have plain names, as the tree shows them. Another `trainer` or `policies` earlier on the path
would be imported in place of ours and fail somewhere inside. Nothing of ours is imported here, because it may
not be ours.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("autotune", "policies", "trainer", "analyzers")


def shadowed() -> str | None:
    """Which package is another one, and what to do, in words; None when all four are ours."""
    home = Path(__file__).resolve().parent.parent
    found = {name: _folder(name) for name in PACKAGES}
    foreign = {name: folder for name, folder in found.items() if folder != home / name}
    if not foreign:
        return None
    lines = [
        f"package {name!r} is not there" if folder is None else f"another {name!r} comes first: {folder}"
        for name, folder in foreign.items()
    ]
    return "\n".join(
        [
            f"moe-autotune in {home} cannot work with packages of another installation:",
            *(f"    {line}" for line in lines),
            "    → start it from a folder without a package of that name, take that folder off PYTHONPATH,",
            "      or install moe-autotune into a virtual environment of its own",
        ]
    )


def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]).resolve() if places else None
