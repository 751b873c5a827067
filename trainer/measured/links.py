"""Reads links.csv: the share of a link's rate that libraries reach in measurements, and which copies of a token they
send."""

from __future__ import annotations

from functools import cache

from trainer.errors import refused
from trainer.recipe.tables import figure, read_table, words

COLLECTIVE = "collective"  # name of NCCL's rings and trees in the table: all-gather, reduce-scatter, all-reduce


@cache
def shares() -> dict[tuple[str, str], float]:
    """Returns (library, fabric) -> share of the link's rate; fabrics are nvlink72, nvlink8 and network."""
    return {
        (row["library"], words(row, "fabric", table="links.csv")): figure(row, "share", table="links.csv")
        for row in _rows()
    }


@cache
def copies() -> dict[str, str]:
    """Returns library -> the copies of a token it sends inside a domain: one per expert, one per rank, or all ranks'
    tokens."""
    rows = [(row, _copies(row)) for row in _rows()]
    return {row["library"]: sent for row, sent in rows if row["fabric"] != "network"}


def _copies(row: dict[str, str]) -> str:
    """Returns the cell `copies` of a row.

    Raises BadInputError if it is empty: only collectives send no copies of tokens.
    """
    if not row["copies"] and row["library"] != COLLECTIVE:
        raise refused(f"links.csv {row['library']}", "nothing in copies", "write which copies of a token it sends")
    return row["copies"]


def _rows() -> list[dict[str, str]]:
    return read_table("links.csv", package="trainer.measured")
