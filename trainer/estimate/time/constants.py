"""The physical constants of the step-time model: rows of `constants.csv`, each with its unit and origin."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from trainer.estimate.candidates import Floats
from trainer.measured.constants import Constant, read_constants
from trainer.measured.links import shares

Constants = Mapping[str, float | Floats]  # numbers, or arrays [K, 1]: K sets of constants, each result's first axis


@cache
def constant_table() -> dict[str, Constant]:
    return read_constants("constants.csv", package="trainer.estimate.time")


@cache
def constants() -> Mapping[str, float]:
    """Returns every constant's value, measured shares of links included."""
    links = {f"link_share.{library}.{fabric}": share for (library, fabric), share in shares().items()}
    return links | {name: row.value for name, row in constant_table().items()}
