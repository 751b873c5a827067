"""Renders `compare --html`: the two steps as bars on one scale, and the differences by part, cause, kind and kernel."""

from __future__ import annotations

from markupsafe import Markup

from analyzers.diagnosis import TraceReport
from analyzers.wording import part_name
from autotune.compare.comparison import (
    Comparison,
    Move,
    change,
    headline,
    moved_parts,
    signed,
    verdict_words,
    waiting_words,
    wall_rows,
)
from autotune.diagnose.steps import step_bar, steps_legend
from autotune.diagnose.terminal import rank_words
from autotune.looks.kernel_names import printable
from autotune.looks.named import NamedRow, named_row
from autotune.looks.quantities import duration, percent
from autotune.looks.render import render
from autotune.looks.segments import KINDS, counted_steps, mean_segments, mean_step_us, slowest, steps_of
from autotune.looks.svg import box, drawing, line, tag
from autotune.looks.tables import Table

KERNELS = 40
MOVE_PX = 14
LARGE_FIGURE = "change of the step time from A to B"
MIN_DRAWN_SHARE = 0.002  # fraction of the step: a part that moved less has no bar
SHOWN = 0.0005  # fraction of a step: a kernel that moved less is not listed


def comparison_page(found: Comparison, names: tuple[str, str]) -> str:
    """Renders the page; `names` are A and B as named on the command line."""
    one, other = slowest(found.a), slowest(found.b)
    figure, note = change(found)
    return render(
        "comparison.html.j2",
        name=" · ".join(map(printable, names)),
        figure=figure,
        simulated=found.a.simulated or found.b.simulated,
        of=LARGE_FIGURE if one and other and found.times_compare else "",
        figure_note=note,
        facts={
            "What moved": headline(found),
            "Waiting": waiting_words(found),
            "A": f"{printable(names[0])}: {verdict_words(found.a.diagnosis)}",
            "B": f"{printable(names[1])}: {verdict_words(found.b.diagnosis)}",
        },
        notes=found.notes,
        bars=_bars(one, other) if one and other else None,
        moves=_moves(found, one) if one and other else None,
        parts=_parts(found, one, other) if one and other else None,
        communication=_communication(found),
        kernels=_kernels(found, one, other) if one and other else [],
        walls=Table(columns=("wall", "A", "B", "of A", "of B"), rows=tuple(wall_rows(found)), numbers=(1, 2, 3, 4)),
    )


def _bars(one: TraceReport, other: TraceReport) -> Markup:
    longest = max(mean_step_us(one), mean_step_us(other)) or 1.0
    bars = [
        step_bar(
            mean_segments(counted_steps(trace)),
            longest,
            " · ".join(part for part in (side, rank_words(trace), duration(mean_step_us(trace))) if part),
        )
        for side, trace in (("A", one), ("B", other))
    ]
    return Markup("").join([steps_legend([*steps_of(one), *steps_of(other)]), *bars])


def _moves(found: Comparison, one: TraceReport) -> Markup | None:
    """Draws a row for each part that moved, to the left where it became shorter, to the right where it became longer;
    None if none did."""
    step_us = mean_step_us(one) or 1.0
    sized = [(move, move.moved_us / step_us if found.times_compare else move.moved_share) for move in found.of("part")]
    moved = [(move, share) for move, share in sized if abs(share) >= MIN_DRAWN_SHARE]
    if not moved:
        return None
    ends = min([0.0, *(share for _, share in moved)]), max([0.0, *(share for _, share in moved)])
    zero, whole = -ends[0] / (ends[1] - ends[0]), ends[1] - ends[0]
    return Markup("").join(_move(move, share / whole, zero, found.times_compare) for move, share in moved)


def _move(move: Move, width: float, zero: float, times_compare: bool) -> Markup:
    words = next(kind.words for kind in KINDS if kind.key == move.name)
    figure = signed(move.moved_us) if times_compare else f"{100 * move.moved_share:+.1f} points of the step"
    text = f"{words} {figure} ({duration(move.a_us)} → {duration(move.b_us)})"
    parts = [
        box(zero, 0, zero + width, MOVE_PX, f"k-{move.name}", title=text),
        line(zero, -2, zero, MOVE_PX + 2, "zero"),
    ]
    return tag("p", text, class_="bar-label") + drawing(parts, height=MOVE_PX, name=text, class_="bar")


def _parts(found: Comparison, one: TraceReport, other: TraceReport) -> Table:
    was, now = mean_step_us(one) or 1.0, mean_step_us(other) or 1.0
    rows = tuple(
        (
            words,
            duration(move.a_us),
            duration(move.b_us),
            signed(move.moved_us),
            percent((move.a_us or 0.0) / was),
            percent((move.b_us or 0.0) / now),
        )
        for words, move in moved_parts(found, least=0.0, mark="· ")
    )
    return Table(columns=("part", "A", "B", "moved", "of A", "of B"), rows=rows, numbers=(1, 2, 3, 4, 5))


def _communication(found: Comparison) -> Table:
    rows = tuple(
        (part_name(move.name), duration(move.a_us), duration(move.b_us), signed(move.moved_us))
        for move in found.of("communication")
    )
    return Table(columns=("kind", "A", "B", "moved"), rows=rows, numbers=(1, 2, 3))


def _kernels(found: Comparison, one: TraceReport, other: TraceReport) -> list[tuple[str, list[NamedRow]]]:
    rows = [
        named_row((duration(move.a_us), duration(move.b_us), signed(move.moved_us)), move.name)
        for move in found.of("kernel")[:KERNELS]
        if abs(move.moved_us) >= SHOWN * max(mean_step_us(one), mean_step_us(other))
    ]
    return [("", rows)] if rows else []
