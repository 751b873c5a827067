"""Terminal output of `gap`: the answer, the waterfall, and the causes with advice, largest first."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.gap.document import GapDocument, Time
from autotune.gap.rows import Row, rows
from autotune.gap.words import (
    SMALL,
    advices,
    cause_name,
    drop_name,
    headline,
    level_name,
    moved,
    not_priced_texts,
    notes,
    share_text,
    signed,
    time_text,
    unit,
)
from autotune.looks.quantities import NONE, UNMEASURED, significant
from autotune.looks.text_tables import Entry, print_entries, print_table
from autotune.looks.wrapping import plain_console, say

TITLE = "from your step down to what is attainable"
MOST_CAUSES = 8


def show_gap(found: GapDocument) -> None:
    console = plain_console()
    say(console, headline(found), style="bold")
    if found.simulated:
        say(console, UNMEASURED, lead="simulated: ")
    for note in notes(found):
        say(console, note, lead="note: ", style="dim")
    seen = ("seen", "expected") if found.against is None or found.gpu is not None else ("here", "there")
    header = ("<waterfall", "time", "90 % interval", unit(found), *seen)
    print_table(console, TITLE, *_filled(header, [_row(row, found) for row in rows(found)]))
    entries = [
        Entry(
            title=cause_name(cause, found),
            figures=(time_text(cause.time), share_text(cause)),
            below=tuple(lines),
            share=cause.time.ms / found.causes[0].time.ms,
        )
        for cause, lines in list(zip(found.causes, advices(found), strict=True))[:MOST_CAUSES]
    ]
    if entries:
        console.print()
        print_entries(console, "what is lost, the largest first", ("at most", "of the step"), entries)
    if any(not cause.sure for cause in found.causes[:MOST_CAUSES]):
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
    return [header[at] for at in kept], [[row[at] for at in kept] for row in table]


def _row(row: Row, found: GapDocument) -> tuple[str, ...]:
    if row.level is not None:
        level = row.level
        rate = NONE if level.tokens_per_s_per_gpu is None else significant(level.tokens_per_s_per_gpu, 4)
        return level_name(level, found), signed(level.time.ms), _interval(level.time), rate, "", ""
    lost_ms = row.from_ms - row.to_ms
    if row.drop is None or row.time is None:
        return f"  {SMALL}", moved(-lost_ms), "", "", "", ""
    seen, expected = ("" if ms is None else signed(ms) for ms in (row.drop.seen_ms, row.drop.expected_ms))
    return f"  {drop_name(row.drop, found)}", moved(-lost_ms), _interval(row.time, sign=-1.0), "", seen, expected


def _interval(time: Time, *, sign: float = 1.0) -> str:
    """Returns `1.20 to 1.50 s`; empty for an exact time."""
    if time.low_ms == time.high_ms:
        return ""
    low, high = sorted((sign * time.low_ms, sign * time.high_ms))
    return f"{signed(low)} to {signed(high)}"
