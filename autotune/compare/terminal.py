"""Terminal output of `compare`: the change in one line, the two steps as bars, then the differences, largest first."""

from __future__ import annotations

from rich.console import Console

from analyzers.wording import part_name
from autotune.compare.comparison import (
    Comparison,
    Move,
    headline,
    moved_parts,
    signed,
    verdict_words,
    waiting_words,
    wall_rows,
)
from autotune.diagnose.terminal import SHOWN, rank_words
from autotune.looks.kernel_names import short_name
from autotune.looks.letter_bars import print_bars
from autotune.looks.quantities import NONE, duration, percent
from autotune.looks.segments import counted_steps, mean_segments, mean_step_us, slowest
from autotune.looks.text_tables import print_table
from autotune.looks.wrapping import plain_console, say

INNER_SHOWN = 0.005  # fraction of a step: smaller inner moves are not shown
KERNELS_SHOWN = 6


def show_comparison(found: Comparison) -> None:
    """Prints the headline, both verdicts, both partitions, and the differences."""
    console = plain_console()
    say(console, headline(found), style="bold")
    for name, analysis in (("A", found.a), ("B", found.b)):
        say(console, verdict_words(analysis.diagnosis), lead=f"{name}: ")
    one, other = slowest(found.a), slowest(found.b)
    if one is None or other is None:  # the headline says so
        return
    for note in found.notes:
        say(console, note, lead="note: ", style="dim")
    console.print()
    sides = (("A", found.a, one), ("B", found.b, other))
    print_bars(
        console,
        [
            (f"{name} {rank_words(trace) or trace.path}", mean_segments(counted_steps(trace)))
            for name, _, trace in sides
        ],
    )
    was, now = mean_step_us(one), mean_step_us(other)
    what = "average step" if one.steps and other.steps else "average step or whole trace"
    parts = moved_parts(found, least=SHOWN, least_inner=INNER_SHOWN, mark="  ")
    rows = [_row(words, move, was, now) for words, move in parts]
    print_table(console, f"{what}, what moved first", ("<", "A", "B", "moved", "of A", "of B"), rows)
    if waits := waiting_words(found):
        say(console, waits, lead=" ")
    _print_communication(console, found, was)
    _print_kernels(console, found, was)
    print_table(console, "walls: recoverable time at most", ("<", "A", "B", "of A", "of B"), list(wall_rows(found)))


def _row(words: str, move: Move, was: float, now: float) -> tuple[str, ...]:
    shares = ((move.a_us or 0.0) / was if was else 0.0), ((move.b_us or 0.0) / now if now else 0.0)
    return words, *_times(move), *(percent(share) for share in shares)


def _times(move: Move) -> tuple[str, str, str]:
    return duration(move.a_us), duration(move.b_us), signed(move.moved_us)


def _print_communication(console: Console, found: Comparison, step_us: float) -> None:
    """Prints communication by kind, hidden and exposed together: a change of overlap alone does not alter it."""
    rows = [
        (part_name(move.name), *_times(move))
        for move in found.of("communication")
        if max(move.a_us or 0.0, move.b_us or 0.0) >= SHOWN * step_us
    ]
    print_table(console, "communication, hidden and exposed", ("<kind", "A", "B", "moved"), rows)


def _print_kernels(console: Console, found: Comparison, step_us: float) -> None:
    moved = [move for move in found.of("kernel") if abs(move.moved_us) >= SHOWN * step_us][:KERNELS_SHOWN]
    room = max(console.width - 36, 20)
    rows = [
        (*(cell.replace(NONE, "not listed") for cell in _times(move)), short_name(move.name, room)) for move in moved
    ]
    print_table(console, "kernels that moved most, per step", ("A", "B", "moved", "<kernel"), rows)
