"""Measures the rows of each group on a rank: each file of this folder defines `MEASURES`, by kind of row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from trainer.microbenchmarks.row import Row
from trainer.probe.bench import Bench

# returns a rank's repeats, in the row's unit; None if the rank takes no part
Measure = Callable[[Bench, Row], list[float] | None]


@cache
def measures() -> dict[str, Measure]:
    """Returns the measuring function of every kind of row."""
    found = [import_module(f"{__name__}.{module.name}").MEASURES for module in iter_modules(__path__)]
    return {kind: measure for table in found for kind, measure in table.items()}
