"""Renders `gap --html`: the waterfall as a drawing and as a table, and the causes with advice."""

from __future__ import annotations

from markupsafe import Markup

from autotune.gap.document import GapDocument
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
from autotune.looks.kernel_names import printable
from autotune.looks.quantities import significant
from autotune.looks.render import render
from autotune.looks.stacks import Piece, legend
from autotune.looks.svg import box, drawing, line, tag
from autotune.looks.tables import Table
from trainer.estimate.gap.waterfall import Kind

ROW_PX, BAR_PX = 20, 16
LEVEL, SAVED = "compute", "host"  # colours of levels, and of gaps in which time is gained
# kind of a gap → its colour and its words
KINDS: dict[str, tuple[str, str]] = {
    Kind.PART: ("ep_dispatch", "lost in a traced part"),
    Kind.PROBED: ("tp", "the cluster, as probed"),
    Kind.UNEXPLAINED: ("unattributed", "not explained"),
    Kind.SETTING: ("optimizer", "lost to a setting"),
    Kind.WORK: ("sync", "length and batch"),
    Kind.CLUSTER: ("dp", "number of GPUs"),
    Kind.MODEL: ("cp", "details of the model"),
    Kind.SOFTWARE: ("copy", "software release"),
}


def gap_page(found: GapDocument) -> str:
    first = found.levels[0]
    drawn = list(rows(found))
    return render(
        "gap.html.j2",
        name=printable(found.name),
        figure=signed(first.time.ms),
        simulated=found.simulated,
        headline=headline(found),
        title=title(found).capitalize(),
        of="step" if found.steps_marked else "trace",
        levels=[level_text(level, found) for level in found.levels],
        notes=list(notes(found)),
        waterfall=_drawn(drawn, found),
        table=_table(drawn, found),
        causes=[
            {
                "name": cause_name(cause, found),
                "time": time_text(cause.time),
                "share": share_text(cause),
                "lines": lines,
            }
            for cause, lines in zip(found.causes, advices(found), strict=True)
        ],
        unsure=any(not cause.sure for cause in found.causes),
        not_priced=not_priced_texts(found),
    )


def _drawn(drawn: list[Row], found: GapDocument) -> Markup:
    """Draws one bar per row: levels start at 0, gaps at the end of the row above, with their interval as a whisker."""
    longest = max(max(row.from_ms, row.to_ms) for row in drawn) * 1.02 or 1.0
    pieces = [_piece(row) for row in drawn]
    bars = [_bar(row, piece, longest, found) for row, piece in zip(drawn, pieces, strict=True)]
    return Markup("").join([legend(pieces), *bars])


def _piece(row: Row) -> Piece:
    key, words = (LEVEL, "step") if row.level is not None else (SAVED, "faster than there")
    if row.level is None and row.from_ms >= row.to_ms:
        key, words = KINDS[row.gap.kind] if row.gap is not None else ("other", SMALL)
    return Piece(key=key, words=words, value=1.0, text="")


def _bar(row: Row, piece: Piece, longest: float, found: GapDocument) -> Markup:
    label = _label(row, found)
    low, high = sorted((row.from_ms / longest, row.to_ms / longest))
    parts = [box(max(low, 0.0), 2, high, BAR_PX, f"k-{piece.key}", title=label)]
    if row.time is not None and row.time.high_ms > row.time.low_ms:
        ends = (
            (row.time.low_ms, row.time.high_ms)
            if row.level
            else (row.from_ms - row.time.low_ms, row.from_ms - row.time.high_ms)
        )
        left, right = (min(max(end / longest, 0.0), 1.0) for end in sorted(ends))
        parts.append(line(left, BAR_PX / 2 + 1, right, BAR_PX / 2 + 1, "whisker"))
    return tag("p", label, class_="bar-label") + drawing(parts, height=ROW_PX, name=label, class_="bar")


def _label(row: Row, found: GapDocument) -> str:
    if row.level is not None:
        return level_text(row.level, found)
    lost_ms = row.from_ms - row.to_ms
    if row.gap is None:
        return f"{SMALL} {moved(-lost_ms)}"
    return f"{gap_name(row.gap, found)} {moved(-lost_ms)}"


def _table(drawn: list[Row], found: GapDocument) -> Table:
    return Table(
        columns=("waterfall", "time", "low", "high", unit(found), "seen", "expected"),
        rows=tuple(_cells(row, found) for row in drawn),
        numbers=(1, 2, 3, 4, 5, 6),
    )


def _cells(row: Row, found: GapDocument) -> tuple[str, ...]:
    if row.level is not None:
        rate = row.level.tokens_per_s_per_gpu
        ends = [signed(ms) for ms in (row.level.time.low_ms, row.level.time.high_ms)]
        shown_rate = "" if rate is None else significant(rate, 4)
        return level_name(row.level, found), signed(row.level.time.ms), *ends, shown_rate, "", ""
    lost = moved(row.to_ms - row.from_ms)
    if row.gap is None or row.time is None:
        return SMALL, lost, "", "", "", "", ""
    ends = [signed(-ms) for ms in (row.time.high_ms, row.time.low_ms)]
    parts = ["" if ms is None else signed(ms) for ms in (row.gap.seen_ms, row.gap.expected_ms)]
    return gap_name(row.gap, found), lost, *ends, "", *parts
