"""Terminal output of `gap`: the answer, the waterfall, and the causes with what to do, the largest first."""

from __future__ import annotations

from autotune.gap.document import GapDocument, Time
from autotune.gap.rows import Row, rows
from autotune.gap.words import (
    SMALL,
    advice_lines,
    cause_name,
    drop_name,
    headline,
    level_name,
    not_priced_text,
    notes,
    share_text,
    signed,
    time_text,
)
from autotune.looks.quantities import NONE, UNMEASURED, significant
from autotune.looks.text_tables import Entry, print_entries, print_table
from autotune.looks.wrapping import plain_console, say

MOST_CAUSES = 8


def show_gap(found: GapDocument, *, on_cpu: bool) -> None:
    console = plain_console()
    say(console, headline(found), style="bold")
    if found.simulated:
        say(console, UNMEASURED, lead="simulated: ")
    for note in notes(found, on_cpu=on_cpu):
        say(console, note, lead="note: ", style="dim")
    header = ("<waterfall", "time", "90 % interval", "tokens/s/GPU", "seen", "expected")
    print_table(console, "from your step down to what is attainable", header, [_row(row, found) for row in rows(found)])
    entries = [
        Entry(
            title=cause_name(cause),
            figures=(time_text(cause.time), share_text(cause)),
            below=tuple(advice_lines(cause)) or ("",),
            share=cause.time.ms / found.causes[0].time.ms,
        )
        for cause in found.causes[:MOST_CAUSES]
    ]
    if entries:
        console.print()
        print_entries(console, "what is lost, the largest first", ("at most", "of the step"), entries)
    if any(not cause.sure for cause in found.causes[:MOST_CAUSES]):
        say(console, "?: its interval reaches 0", style="dim")
    if found.not_priced:
        console.print()
        say(console, "; ".join(map(not_priced_text, found.not_priced)), lead="differs, and no estimate prices it: ")
    if found.attainable is not None:
        say(console, f"{found.attainable}: moe-autotune check {found.attainable}, then estimate", lead="written: ")


def _row(row: Row, found: GapDocument) -> tuple[str, ...]:
    if row.level is not None:
        level = row.level
        rate = NONE if level.tokens_per_s_per_gpu is None else significant(level.tokens_per_s_per_gpu, 4)
        return level_name(level, found), signed(level.time.ms), _interval(level.time), rate, "", ""
    lost_ms = row.from_ms - row.to_ms
    if row.drop is None or row.time is None:
        return f"  {SMALL}", signed(-lost_ms), "", "", "", ""
    seen, expected = ("" if ms is None else signed(ms) for ms in (row.drop.seen_ms, row.drop.expected_ms))
    return f"  {drop_name(row.drop, found)}", signed(-lost_ms), _interval(row.time, sign=-1.0), "", seen, expected


def _interval(time: Time, *, sign: float = 1.0) -> str:
    """Returns `1.20 to 1.50 s`; empty for an exact time."""
    if time.low_ms == time.high_ms:
        return ""
    low, high = sorted((sign * time.low_ms, sign * time.high_ms))
    return f"{signed(low)} to {signed(high)}"
