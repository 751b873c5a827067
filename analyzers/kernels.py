"""What a name means: a device kernel's class and, for communication, its kind; a CPU operator's class.

The knowledge is in kernels.csv and operators.csv, one row a pattern with its source; the first row that matches
decides. A name no row matches is `other` and shows up in the coverage.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

COMMUNICATION = "communication"
OTHER = "other"
RECOMPUTE = "recompute"
# the order decides whose time it is when two classes run at once: the rarer and heavier first
COMPUTE_CLASSES = (
    RECOMPUTE,
    "attention",
    "grouped_gemm",
    "gemm",
    "convolution",
    "optimizer",
    "router",
    "quantise",
    "embedding",
    "elementwise",
    "indexing",
    OTHER,
)
# likewise for communication exposed at the same time
KINDS = ("ep_dispatch", "ep_combine", "ep_notify", "tp", "cp", "pp", "dp", "all_to_all", "other")


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """compute_class: one of COMPUTE_CLASSES, or COMMUNICATION; kind: one of KINDS, None if the name does not say."""

    compute_class: str
    kind: str | None
    known: bool


UNKNOWN = Meaning(compute_class=OTHER, kind=None, known=False)


@cache
def _table(file: str) -> tuple[tuple[re.Pattern[str], Meaning], ...]:
    text = resources.files("analyzers").joinpath(file).read_text(encoding="utf-8")
    return tuple(
        (
            re.compile(row["pattern"]),
            Meaning(compute_class=row["class"], kind=row.get("kind") or None, known=True),
        )
        for row in csv.DictReader(text.splitlines())
    )


@cache
def kernel(name: str) -> Meaning:
    """The meaning of a device kernel's name (or of a gloo range)."""
    return _lookup("kernels.csv", name)


@cache
def operator(name: str) -> Meaning:
    """The meaning of a CPU operator's name; one that is unknown only encloses others (a Python function)."""
    return _lookup("operators.csv", name)


def _lookup(file: str, name: str) -> Meaning:
    return next((meaning for pattern, meaning in _table(file) if pattern.search(name)), UNKNOWN)
