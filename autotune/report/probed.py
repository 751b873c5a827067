"""The section on the probe before the first burst: its rows by group, with the figures that the tables expect."""

from __future__ import annotations

from itertools import groupby

from autotune.looks.quantities import counted, significant
from autotune.looks.tables import Table
from autotune.probe.words import TITLES, cells, notes
from autotune.report.document import ProbeEntry
from autotune.report.material import Material, Record, Section
from autotune.tuning.lines import failure_in_words

COLUMNS = ("what", "measured", "expected", "consequence")
LESSON_NOTE = "Predictions start from these values instead of the tables."


def probed(material: Material) -> Section | None:
    """Returns the section; None if no rows were probed."""
    found = material.document.probe
    if found is None:
        return None
    records = tuple(
        Record(heading=TITLES[group], facts=(), tables=(_table([cells(row) for row in rows]),))
        for group, rows in groupby(found.rows, key=lambda row: row.group)
    )
    paragraphs = (
        f"{_cost(found, material.unit)} {LESSON_NOTE}",
        *(f"{note[:1].upper()}{note[1:]}." for note in notes(found.rows)),
    )
    if found.failure is not None:
        paragraphs += (f"The probe ended early: {failure_in_words(found.failure)}.",)
    return Section(key="probe", title="Probe of the cluster", paragraphs=paragraphs, records=records)


def _cost(found: ProbeEntry, unit: str) -> str:
    measured = sum(row.measured is not None for row in found.rows)
    return (
        f"{measured} of {counted(len(found.rows), 'row')} measured on {counted(found.ranks, 'rank')} before the first "
        f"burst, in {found.seconds:.0f} s ({significant(found.gpu_hours, 2)} {unit}-hours)."
    )


def _table(rows: list[tuple[str, str, str, str]]) -> Table:
    return Table(columns=COLUMNS, rows=tuple(rows), numbers=(1, 2))
