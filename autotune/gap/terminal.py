"""Terminal output of `gap`: the answer, the waterfall, and the causes with advice, largest first."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.gap.document import GapDocument, Time
from autotune.gap.rows import Row, rows
from autotune.gap.words import (
    SMALL,
    advices,
    cause_name,
    gap_name,
    headline,
    level_name,
    level_text,
    moved,
    not_priced_texts,
    notes,
    share_text,
    signed,
    time_text,
    title,
    unit,
)
from autotune.looks.quantities import NONE, UNMEASURED, significant
from autotune.looks.text_tables import Entry, print_entries, print_table, width_of
from autotune.looks.wrapping import plain_console, say

MAX_CAUSES = 8


def show_gap(found: GapDocument) -> None:
    console = plain_console()
    say(console, headline(found), style="bold")
    if found.simulated:
        say(console, UNMEASURED, lead="simulated: ")
    for note in notes(found):
        say(console, note, lead="note: ", style="dim")
    seen = ("seen", "expected") if found.against is None or found.gpu is not None else ("here", "there")
    header = ("<waterfall", "time", "± 90 %", unit(found), *seen)
    columns, table = _filled(header, [_row(row, found) for row in rows(found)])
    wide = width_of(columns, table) > console.width
    kept = [at for at, name in enumerate(columns) if not wide or name != unit(found)]
    print_table(console, title(found), *_only(kept, columns, table))
    if len(kept) < len(columns):
        console.print()
        for level in found.levels:
            say(console, level_text(level, found), lead=" ")
    entries = [
        Entry(
            title=cause_name(cause, found),
            figures=(time_text(cause.time), share_text(cause)),
            below=tuple(lines),
            share=cause.time.ms / found.causes[0].time.ms,
        )
        for cause, lines in list(zip(found.causes, advices(found), strict=True))[:MAX_CAUSES]
    ]
    if entries:
        console.print()
        print_entries(
            console,
            "what is lost, the largest first",
            ("at most", "of the step" if found.steps_marked else "of the trace"),
            entries,
        )
    if any(not cause.sure for cause in found.causes[:MAX_CAUSES]):
        say(console, "?: its interval reaches 0", style="dim")
    if found.not_priced:
        console.print()
        say(console, f"differs, and no estimate prices it: {'; '.join(not_priced_texts(found))}", style="dim")
    if found.attainable is not None:
        say(console, f"{found.attainable}: moe-autotune check {found.attainable}, then estimate", lead="written: ")


def _filled(header: Sequence[str], table: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Returns the table without empty columns, and without the measured column if nothing is expected."""
    kept = [at for at in range(len(header)) if any(row[at] not in ("", NONE) for row in table)]
    if len(header) - 1 not in kept:
        kept = [at for at in kept if at != len(header) - 2]
    return _only(kept, header, table)


def _only(
    kept: Sequence[int], header: Sequence[str], table: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Returns the table with the columns in `kept` only."""
    return [header[at] for at in kept], [[row[at] for at in kept] for row in table]


def _row(row: Row, found: GapDocument) -> tuple[str, ...]:
    if row.level is not None:
        level = row.level
        rate = NONE if level.tokens_per_s_per_gpu is None else significant(level.tokens_per_s_per_gpu, 4)
        return level_name(level, found), signed(level.time.ms), _half(level.time), rate, "", ""
    lost_ms = row.from_ms - row.to_ms
    if row.gap is None or row.time is None:
        return f"  {SMALL}", moved(-lost_ms), "", "", "", ""
    seen, expected = ("" if ms is None else signed(ms) for ms in (row.gap.seen_ms, row.gap.expected_ms))
    return f"  {gap_name(row.gap, found)}", moved(-lost_ms), _half(row.time), "", seen, expected


def _half(time: Time) -> str:
    """Returns half the width of the 90 % interval; empty for an exact time."""
    return "" if time.low_ms == time.high_ms else signed((time.high_ms - time.low_ms) / 2)
