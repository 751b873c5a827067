"""Prints a probe as a table that can be pasted into a bug report."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console

from autotune.looks.quantities import counted, significant
from autotune.looks.text_tables import print_table
from autotune.looks.wrapping import say
from autotune.probe.document import ProbeDocument
from autotune.probe.words import TITLES, cells, notes
from autotune.units import gpu_or_rank

HEADER = ("<name", "measured", "expected", "<consequence")


def show_probe(console: Console, found: ProbeDocument) -> None:
    """Prints where the probe ran, one table per group, and the constants that it moves."""
    unit = gpu_or_rank(found.gpu)
    where = f"{counted(found.ranks, 'rank')}, {found.gpu.upper()}{', simulated' * found.simulated}"
    cost = f"{found.seconds:.0f} s, {significant(found.gpu_hours, 2)} {unit}-hours"
    say(console, f"probe of {found.recipe}: {where}, {cost}")
    for name, version in found.environment.items():
        say(console, f"{name} {version}")
    if found.failure is not None:
        say(console, f"it failed: {found.failure.evidence}")
    for group, rows in groupby(found.rows, key=lambda row: row.group):
        print_table(console, TITLES[group], HEADER, [cells(row) for row in rows])
    if lines := notes(found.rows):
        console.print()
        for note in lines:
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
    print_table(console, "Constants of the estimate by this probe", header, factors)
