"""The releases of Megatron-Core, Megatron-Bridge, Transformer Engine, torch, CUDA and DeepEP that belong together: one
row of `releases.csv` each, with specifiers of `packaging` as cells.

`tested`: this product's tests run on them. `belongs`: NVIDIA's release was made with them; nothing of it was run here.
`fails`: they do not work together, whatever the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from trainer.recipe.tables import read_table

# columns with specifiers → the names of their packages in an outcome's versions
PACKAGES = {
    "megatron_core": "megatron-core",
    "megatron_bridge": "megatron-bridge",
    "transformer_engine": "transformer-engine",
    "torch": "torch",
    "cuda": "cuda",
    "deep_ep": "deep-ep",
    "python": "python",
}


class Status(StrEnum):
    TESTED = "tested"
    BELONGS = "belongs"
    FAILS = "fails"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Together:
    """One row. `packages`: {name of a package: its releases}; `where`: what the tests ran on, the container that NVIDIA
    builds, or the reason of a failure."""

    status: Status
    packages: Mapping[str, SpecifierSet]
    where: str
    source: str

    def holds(self, versions: Mapping[str, str], *, present: bool = False) -> bool:
        """Returns whether these versions are of the row; `present`: whether every package that the row names must be
        among them."""
        known = {name: _version(versions[name]) for name in self.packages if name in versions}
        if present and known.keys() != self.packages.keys():
            return False
        return all(found is not None and found in self.packages[name] for name, found in known.items())


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Knowledge of a set of versions: the status, and the row that says so, None for `unknown`."""

    status: Status
    row: Together | None = None


@cache
def table() -> tuple[Together, ...]:
    return tuple(
        Together(
            status=Status(row["status"]),
            packages={name: SpecifierSet(row[column]) for column, name in PACKAGES.items() if row[column]},
            where=row["where"],
            source=row["source"],
        )
        for row in read_table("releases.csv", package="trainer")
    )


def standing_of(versions: Mapping[str, str]) -> Standing:
    """Returns what is known of these versions, {package: version}.

    A failure wins, then tests. Tests without Transformer Engine or DeepEP say nothing of versions with them, and what
    NVIDIA's release was made with says something only where Transformer Engine is the same.
    """
    optional = {"transformer-engine", "deep-ep"} & versions.keys()
    says = {
        Status.FAILS: lambda row: row.holds(versions, present=True),
        Status.TESTED: lambda row: optional <= row.packages.keys() and row.holds(versions),
        Status.BELONGS: lambda row: "transformer-engine" in versions and row.holds(versions),
    }
    if "megatron-core" in versions:
        for status, holds in says.items():
            for row in table():
                if row.status is status and holds(row):
                    return Standing(status=status, row=row)
    return Standing(status=Status.UNKNOWN)


def tested_cores() -> tuple[str, ...]:
    """Returns the releases of Megatron-Core that tests run on, oldest first."""
    tested = {_exact(row.packages["megatron-core"]) for row in table() if row.status is Status.TESTED}
    return tuple(sorted(tested, key=Version))


def belonging_to(core: str) -> Together | None:
    """Returns what NVIDIA made a release of Megatron-Core with; None for a release that the table does not have."""
    versions = {"megatron-core": core}
    return next((row for row in table() if row.status is Status.BELONGS and row.holds(versions)), None)


def core_of_bridge(version: str) -> str | None:
    """Returns the minor release of Megatron-Core ("0.18") that a Megatron-Bridge was made with; None if unknown."""
    versions = {"megatron-bridge": version}
    found = (row for row in table() if row.status is Status.BELONGS and row.holds(versions))
    return next((_exact(row.packages["megatron-core"]).removesuffix(".*") for row in found), None)


def _exact(releases: SpecifierSet) -> str:
    """Returns the version of a specifier such as `==0.19.2`."""
    (one,) = releases
    return one.version


def _version(text: str) -> Version | None:
    """Returns the version without the build, such as 2.13.0 of 2.13.0+cpu; None for a text that is none."""
    try:
        return Version(Version(text).base_version)
    except InvalidVersion:
        return None
