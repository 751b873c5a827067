"""Software releases that change the step time: one row of `software.csv` each, oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainer.errors import refused
from trainer.recipe.tables import read_table


@dataclass(frozen=True, kw_only=True)
class Release:
    name: str
    aliases: tuple[str, ...]
    fused_grouped_mlp: bool  # experts in MXFP8 on Blackwell as one kernel, activation and quantization included


@cache
def releases() -> dict[str, Release]:
    """Returns the releases by name, oldest first."""
    rows = (
        Release(
            name=row["release"],
            aliases=tuple(row["aliases"].split()),
            fused_grouped_mlp=_yes(row, "fused_grouped_mlp"),
        )
        for row in read_table("software.csv", package="trainer.measured")
    )
    return {row.name: row for row in rows}


def _yes(row: dict[str, str], column: str) -> bool:
    if row[column] not in ("yes", "no"):
        raise refused(f"software.csv {row['release']}", f"neither yes nor no in {column}", "write one, with its source")
    return row[column] == "yes"


def latest() -> str:
    return list(releases())[-1]


def release_named(name: str) -> str:
    """Returns the release with this name or alias. Raises KeyError, which lists the known ones, for any other."""
    for release in releases().values():
        if name == release.name or name in release.aliases:
            return release.name
    raise KeyError(f"no software release {name!r}; there are {', '.join(releases())}")
