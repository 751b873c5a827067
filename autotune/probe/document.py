"""The JSON document of a probe: every row with its expected figure and the consequence, and the constants that the rows
moved.

The rows come from real ranks, the simulated engine, or a journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from policies.surrogate.corrections import Correction, corrections
from policies.surrogate.prior import prior_of
from policies.surrogate.probed import ExpectedRow, expected_rows, with_probe
from policies.surrogate.time import TimeSurrogate, fit_time
from trainer.burst import Failure
from trainer.microbenchmarks.row import Row
from trainer.probe.links import Links
from trainer.recipe import Recipe

APART = 1.15  # ratio of measured and expected, either way: below it a row is as expected
FEWER_IS_SLOWER = ("dp_beside",)  # kinds of rows whose smaller figure is the slower one


class Consequence(StrEnum):
    """The result of a row compared with the tables."""

    AS_EXPECTED = "as expected"
    FASTER = "faster"
    SLOWER = "slower"
    LESS = "less"
    MORE = "more"
    MEASURED = "measured"  # the tables have no figure
    WORKS = "works"
    MISSING = "missing"
    NOT_MEASURED = "not measured"


class ProbedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-benchmark.

    `expected`: by the tables; `ratio`: measured over expected; `factors`: rows of factors.csv that it informs;
    `slow_rank` took `slow_by` times the median of the ranks; `unsteady`: its repeats differ by a quarter or more.
    """

    group: str
    kind: str
    name: str
    unit: str
    measured: float | None
    low: float | None
    high: float | None
    expected: float | None
    ratio: float | None
    consequence: Consequence
    factors: tuple[str, ...]
    ranks: int
    slow_rank: int | None
    slow_by: float | None
    unsteady: bool
    failure: str | None


class MovedFactor(msgspec.Struct, frozen=True, kw_only=True):
    """A constant of the estimate: its value by the tables, and by the probe with a 90 % interval, in `unit`."""

    factor: str
    words: str
    unit: str
    by_tables: float
    value: float
    low: float
    high: float


class ProbeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `probe --json`. `seconds` include start-up; `simulated`: no figure was measured."""

    schema: int = 1
    recipe: str
    gpu: str
    simulated: bool
    ranks: int
    seconds: float
    gpu_hours: float
    links: Links | None
    failure: Failure | None
    environment: dict[str, str]
    rows: list[ProbedRow]
    factors: list[MovedFactor]


def document_of(
    recipe: Recipe,
    rows: Sequence[Row],
    *,
    ranks: int,
    seconds: float,
    links: Links | None = None,
    failure: Failure | None = None,
    environment: dict[str, str] | None = None,
) -> ProbeDocument:
    """Returns the document of a probe's rows."""
    return ProbeDocument(
        recipe=recipe.name,
        gpu=recipe.cluster.gpu_name,
        simulated=recipe.burst.engine == "simulated",
        ranks=ranks,
        seconds=seconds,
        gpu_hours=ranks * seconds / 3600,
        links=links,
        failure=failure,
        environment=environment or {},
        rows=probed_rows(rows, recipe),
        factors=[_moved(found) for found in factors_of(rows, recipe)],
    )


def probed_rows(rows: Sequence[Row], recipe: Recipe) -> list[ProbedRow]:
    """Returns the rows with the figures that the tables expect."""
    return [_row(row, expected) for row, expected in zip(rows, expected_rows(rows, recipe), strict=True)]


def factors_of(rows: Sequence[Row], recipe: Recipe) -> list[Correction]:
    """Returns the constants that the rows moved, largest shift first."""
    return corrections(probed_surrogate(rows, recipe), recipe)


def probed_surrogate(rows: Sequence[Row], recipe: Recipe) -> TimeSurrogate:
    """Returns the surrogate of step time after the probe and before any burst."""
    return fit_time([], with_probe(prior_of([]), rows, recipe))


def _row(row: Row, expected: ExpectedRow) -> ProbedRow:
    ratio = row.measured / expected.expected if row.measured is not None and expected.expected else None
    return ProbedRow(
        group=row.group,
        kind=row.kind,
        name=row.name,
        unit=row.unit,
        measured=row.measured,
        low=row.low,
        high=row.high,
        expected=expected.expected,
        ratio=ratio,
        consequence=_consequence(row, ratio),
        factors=expected.factors,
        ranks=row.ranks,
        slow_rank=row.slow_rank,
        slow_by=row.slow_by,
        unsteady=row.unsteady,
        failure=row.failure,
    )


def _consequence(row: Row, ratio: float | None) -> Consequence:
    if row.unit == "works":
        return Consequence.WORKS if row.measured else Consequence.MISSING
    if row.measured is None:
        return Consequence.NOT_MEASURED
    if ratio is None:
        return Consequence.MEASURED
    if 1 / APART < ratio < APART:
        return Consequence.AS_EXPECTED
    if row.group == "memory":
        return Consequence.MORE if ratio > 1 else Consequence.LESS
    slower = (ratio > 1) != (row.kind in FEWER_IS_SLOWER)
    return Consequence.SLOWER if slower else Consequence.FASTER


def _moved(found: Correction) -> MovedFactor:
    return MovedFactor(
        factor=found.factor,
        words=found.words,
        unit=found.unit,
        by_tables=found.before,
        value=found.after,
        low=found.low,
        high=found.high,
    )
