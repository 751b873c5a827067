"""The table of a probe in a terminal: it can be pasted into a bug report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console

from autotune.looks.quantities import NONE, counted, duration, gib, percent, significant
from autotune.looks.text_tables import print_table
from autotune.looks.wrapping import say
from autotune.probe.document import Consequence, ProbeDocument, ProbedRow
from autotune.units import share_of

TITLES = {
    "compute": "Device work of a layer, forward and backward",
    "host": "Host",
    "links": "Links",
    "overlap": "Communication beside compute",
    "memory": "Memory",
    "works": "Software",
}
FALLS_BACK = {  # of software that is missing: what follows
    "transformer_engine": "layers of Megatron-Core itself: slower, and no FP8",
    "grouped_gemm": "one product an expert",
    "fp8": "BF16 only",
    "graphs": "no CUDA graphs",
    "profiler": "bursts without traces: no walls",
    "nvml": "power and clocks are not seen",
    "nsys": "torch profiler only",
    "deepep": "NCCL all-to-all instead",
    "hybridep": "NCCL all-to-all instead",
    "ncclep": "NCCL all-to-all instead",
    "megatron": "no bursts of engine megatron",
}
HEADER = ("<name", "measured", "expected", "<consequence")


def show_probe(console: Console, found: ProbeDocument) -> None:
    """Prints where it ran, a table a group, and the constants that it moves."""
    unit = share_of(found.gpu)
    where = f"{counted(found.ranks, 'rank')}, {found.gpu.upper()}{', simulated' * found.simulated}"
    cost = f"{found.seconds:.0f} s, {significant(found.gpu_hours, 2)} {unit}-hours"
    say(console, f"probe of {found.recipe}: {where}, {cost}")
    for name, version in found.environment.items():
        say(console, f"{name} {version}")
    if found.failure is not None:
        say(console, f"it failed: {found.failure.evidence}")
    for group, rows in groupby(found.rows, key=lambda row: row.group):
        print_table(console, TITLES[group], HEADER, [_cells(row) for row in rows])
    if notes := _notes(found.rows):
        console.print()
        for note in notes:
            say(console, note, lead="! ")
    factors = [
        (
            one.words,
            f"{significant(one.value, 3)} ({significant(one.low, 3)}–{significant(one.high, 3)})",
            significant(one.by_tables, 3),
            one.unit,
        )
        for one in found.factors
    ]
    header = ("<constant of the estimate", "by this probe (90 %)", "by the tables", "<unit")
    print_table(console, "What the estimate takes from it", header, factors)


def _cells(row: ProbedRow) -> tuple[str, str, str, str]:
    if row.unit == "works":
        return row.name, "yes" if row.measured else "no", "", consequence(row)
    return row.name, quantity(row.measured, row.unit), quantity(row.expected, row.unit), consequence(row)


def quantity(value: float | None, unit: str) -> str:
    """Returns a figure of a row with its unit."""
    if value is None:
        return NONE
    if unit == "us":
        return duration(value)
    return gib(value) if unit == "GiB" else percent(value) if unit == "share" else significant(value, 3)


def consequence(row: ProbedRow) -> str:
    """Returns what follows of a row, in words."""
    match row.consequence:
        case Consequence.NOT_MEASURED:
            return "not measured"
        case Consequence.MISSING:
            return FALLS_BACK.get(row.kind, "")
        case Consequence.MEASURED | Consequence.WORKS:
            return ""
        case Consequence.AS_EXPECTED:
            return "as expected"
        case _:
            return f"{_times(row)} {row.consequence.value}"


def _times(row: ProbedRow) -> str:
    ratio = row.ratio or 1.0
    return f"{significant(max(ratio, 1 / ratio), 3)} times"


def _notes(rows: Sequence[ProbedRow]) -> list[str]:
    """Returns what is to be said beside the figures: why rows have none, slow ranks, repeats that differ."""
    notes = [f"{row.name}: {row.failure}" for row in rows if row.failure is not None]
    if slow := [row for row in rows if row.slow_rank is not None]:
        ranks = ", ".join(str(rank) for rank in sorted({row.slow_rank or 0 for row in slow}))
        worst = max(slow, key=lambda row: row.slow_by or 0.0)
        by = significant(worst.slow_by or 1.0, 3)
        notes.append(f"slower than the median of the ranks: {ranks}; most in {worst.name} ({by} times)")
    unsteady = [row for row in rows if row.unsteady]
    if unsteady:
        worst = max(unsteady, key=lambda row: (row.high or 0.0) / (row.low or 1.0))
        span = f"{quantity(worst.low, worst.unit)} to {quantity(worst.high, worst.unit)}"
        measured = sum(row.measured is not None and row.unit != "works" for row in rows)
        notes.append(
            f"repeats differ by a quarter or more in {len(unsteady)} of {measured} rows, most in {worst.name} "
            f"({span}): a busy neighbour?"
        )
    return notes
