"""Shares of a link's rate that libraries were measured to reach, and which copies of a token they send: links.csv."""

from __future__ import annotations

from functools import cache

from trainer.recipe.tables import read_table

COLLECTIVE = "collective"  # the library of rings and trees: all-gather, reduce-scatter, all-reduce


@cache
def shares() -> dict[tuple[str, str], float]:
    """Returns (library, fabric) -> share of the link's rate; fabrics are nvlink72, nvlink8 and network."""
    return {(row["library"], row["fabric"]): float(row["share"]) for row in _rows()}


@cache
def copies() -> dict[str, str]:
    """Returns library -> which copies of a token it sends inside a domain: every one, one per rank, all ranks'
    tokens."""
    return {row["library"]: row["copies"] for row in _rows() if row["fabric"] != "network"}


def _rows() -> list[dict[str, str]]:
    return read_table("links.csv", package="trainer.measured")
