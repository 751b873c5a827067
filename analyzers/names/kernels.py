"""Classifies names: a device kernel's class and its kind (communication) or precision (GEMM); an operator's class.

The tables are kernels.csv, precision.csv and operators.csv, one row per pattern with its source; the first row that
matches decides. Most rows of kernels.csv match the kernel's own name only (`in` is `name`), since its parameters and
template arguments mention other operations. Rows for generic kernels match the whole text. A name that no row matches
is `other` and is listed in the coverage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from analyzers.kernel_classes import OTHER, PRODUCTS, UNKNOWN_PRECISION
from analyzers.names import tables
from analyzers.names.kernel_name import own_name


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """The meaning of a name.

    compute_class: one of COMPUTE_CLASSES, or COMMUNICATION; kind: one of KINDS, None if the name does not give it;
    precision: of a GEMM (PRODUCTS) the format of the multiplied numbers, UNKNOWN_PRECISION if the name does not give
    it.
    """

    compute_class: str
    kind: str | None = None
    precision: str | None = None
    known: bool = True


UNKNOWN = Meaning(compute_class=OTHER, known=False)


@cache
def kernel(text: str) -> Meaning:
    """Returns the meaning of a device kernel (or of a gloo range), named as profilers write it."""
    looked_in = {"name": own_name(text), "text": text}
    for pattern, where, found in _kernel_rows():
        if pattern.search(looked_in[where]):
            return replace(found, precision=_precision(text)) if found.compute_class in PRODUCTS else found
    return UNKNOWN


@cache
def operator(name: str) -> Meaning:
    """Returns the meaning of a CPU operator's name; UNKNOWN if it only encloses other operators (a Python function)."""
    return next((meaning for pattern, meaning in _operator_rows() if pattern.search(name)), UNKNOWN)


def _precision(text: str) -> str:
    return next((precision for pattern, precision in _precision_rows() if pattern.search(text)), UNKNOWN_PRECISION)


@cache
def _kernel_rows() -> tuple[tuple[re.Pattern[str], str, Meaning], ...]:
    return tuple(
        (re.compile(row["pattern"]), row["in"], Meaning(compute_class=row["class"], kind=row["kind"] or None))
        for row in tables.rows("kernels.csv")
    )


@cache
def _operator_rows() -> tuple[tuple[re.Pattern[str], Meaning], ...]:
    return tuple(
        (re.compile(row["pattern"]), Meaning(compute_class=row["class"])) for row in tables.rows("operators.csv")
    )


@cache
def _precision_rows() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(row["pattern"]), row["precision"]) for row in tables.rows("precision.csv"))
