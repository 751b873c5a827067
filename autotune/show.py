"""Terminal output of `diagnose`, `compare` and `doctor`: the verdict first, then the figures behind it.

A bar is made of letters, one kind of time each, so that it can be read without colour and copied into a mail;
on a terminal the letters stand on the wall's colour. Everything fits 80 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from analyzers.diagnosis import Analysis, Diagnosis, TraceReport, WallFinding
from autotune.quantities import NONE, duration, gain, percent
from autotune.segments import (
    KINDS,
    Family,
    Segment,
    compute_classes,
    mean_segments,
    mean_step_us,
    segments,
    slowest,
    steps_of,
)

if TYPE_CHECKING:
    from autotune.doctor import Found

BARS_SHOWN = 16  # of steps or ranks; the slowest where there are more
BAR_COLUMNS = 42  # beside a label and a time, 80 in all
UNKNOWN_SHOWN = 5  # of the kernels no table row knows, the longest
STYLES = {
    Family.COMPUTE: "white on blue",
    Family.MEMORY: "white on magenta",
    Family.COMMUNICATION: "black on yellow",
    Family.HOST: "black on cyan",
    Family.WAIT: "black on white",
    Family.UNKNOWN: "white on bright_black",
}


def show_analysis(analysis: Analysis) -> None:
    """The verdict, where each step went on each rank, the walls with their evidence, and what was not understood."""
    console = _console()
    _say_verdict(console, analysis.diagnosis)
    _print_bars(console, _step_rows(analysis.traces))
    console.print()
    _print_shares(console, analysis)
    for finding in analysis.diagnosis.walls:
        _print_wall(console, finding)
    _print_coverage(console, analysis.traces)


def show_comparison(before: Analysis, after: Analysis) -> None:
    """Two analyses side by side: the average step of the slowest rank of each, and what moved, largest first."""
    console = _console()
    traces = [(name, slowest(analysis)) for name, analysis in (("A", before), ("B", after))]
    found = [(name, trace) for name, trace in traces if trace is not None]
    if len(found) < 2:
        console.print("One of the two holds no trace: nothing to compare.")
        return
    (_, a), (_, b) = found
    change = mean_step_us(b) / mean_step_us(a) - 1 if mean_step_us(a) else 0.0
    console.print(
        f"step {duration(mean_step_us(a))} → {duration(mean_step_us(b))} ({gain(change)}), "
        f"wall {before.diagnosis.wall.value} → {after.diagnosis.wall.value}",
        style="bold",
    )
    _print_bars(console, [(f"{name} {_rank(trace)}", mean_segments(steps_of(trace))) for name, trace in found])
    console.print()
    _print_moves(console, a, b)
    _print_walls_moved(console, before.diagnosis, after.diagnosis)


def show_doctor(found: Sequence[Found]) -> None:
    """What is here, then what is missing, what it is needed for and how to get it."""
    console = _console()
    here = Table("found", "", box=None, show_header=False, padding=(0, 2, 0, 0))
    for one in found:
        if one.status == "found":
            here.add_row(Text(one.what, style="green"), one.found)
    console.print(here)
    for one in found:
        if one.status == "missing":
            console.print()
            console.print(Text.assemble((f"missing: {one.what}", "yellow"), f", needed for {one.needed_for}"))
            if one.how:
                console.print(f"  → {one.how}")


def _console() -> Console:
    """Plain text that came from elsewhere stays as it is: no markup, no guessing at numbers."""
    return Console(markup=False, highlight=False, emoji=False)


def _say_verdict(console: Console, diagnosis: Diagnosis) -> None:
    finding = diagnosis.finding(diagnosis.wall)
    worth = f", up to {duration(finding.recoverable_us)} ({percent(finding.share)}) of a step" if finding else ""
    console.print(f"wall: {diagnosis.wall.value}{worth}", style="bold")
    console.print(f"{diagnosis.because}\n")


def _step_rows(traces: Sequence[TraceReport]) -> list[tuple[str, list[Segment]]]:
    """Every step of every rank; where that is too much, the average step of the slowest ranks."""
    every = [(f"{_rank(trace)} {step.name}".strip(), segments(step)) for trace in traces for step in steps_of(trace)]
    if len(every) <= BARS_SHOWN:
        return every
    worst = sorted(traces, key=mean_step_us, reverse=True)[:BARS_SHOWN]
    return [(f"{_rank(trace)} average", mean_segments(steps_of(trace))) for trace in worst]


def _rank(trace: TraceReport) -> str:
    return f"rank {trace.rank}" if trace.rank is not None else trace.path.rsplit("/", 1)[-1]


def _print_bars(console: Console, rows: Sequence[tuple[str, list[Segment]]]) -> None:
    """Bars on one scale, with the letters explained below them."""
    longest = max((sum(part.us for part in parts) for _, parts in rows), default=0.0)
    table = Table(Column(max_width=24, overflow="ellipsis", no_wrap=True), Column(justify="right"), "", box=None)
    table.show_header = False
    for label, parts in rows:
        table.add_row(label, duration(sum(part.us for part in parts)), _bar(parts, longest))
    console.print(table)
    seen = {part.kind.key for _, parts in rows for part in parts}
    console.print("  ".join(f"{kind.glyph} {kind.words}" for kind in KINDS if kind.key in seen), style="dim")


def _bar(parts: Sequence[Segment], longest: float) -> Text:
    """Letters in proportion: ends are rounded, so that the bar is as long as its sum."""
    bar, done = Text(), 0.0
    for part in parts:
        start = round(done / longest * BAR_COLUMNS)
        done += part.us
        width = round(done / longest * BAR_COLUMNS) - start
        bar.append(part.kind.glyph * width, style=STYLES[part.kind.family])
    return bar


def _print_shares(console: Console, analysis: Analysis) -> None:
    trace = slowest(analysis)
    if trace is None:
        return
    step_us = mean_step_us(trace) or 1.0
    table = Table(
        f"average step of {_rank(trace)}", Column("time", justify="right"), Column("share", justify="right"), box=None
    )
    for part in mean_segments(steps_of(trace)):
        table.add_row(part.kind.words, duration(part.us), percent(part.us / step_us))
    console.print(table)
    classes = ", ".join(f"{name} {duration(us)}" for name, us in compute_classes(steps_of(trace)) if us > 0)
    if classes:
        console.print(f" compute: {classes}", style="dim")


def _print_wall(console: Console, finding: WallFinding) -> None:
    console.print()
    worth = f"up to {duration(finding.recoverable_us)}, {percent(finding.share)} of the step"
    console.print(
        f"{finding.wall.value}: {worth if finding.recoverable_us > 0 else 'nothing to give back'}", style="bold"
    )
    for said in finding.evidence:
        console.print(f"  - {said}")


def _print_coverage(console: Console, traces: Sequence[TraceReport]) -> None:
    """What was not understood, once for all ranks that say the same."""
    said: list[str] = []
    for trace in traces:
        coverage = trace.coverage
        said.append(f"{percent(coverage.device_time_classified)} of the device time classified")
        said += [
            f"unknown kernel {unknown.name}: {duration(unknown.total_us)}" for unknown in coverage.kernels_unknown[:5]
        ]
        said += [f"{dropped.count} {dropped.what} dropped: {dropped.why}" for dropped in coverage.dropped]
        said += trace.warnings
    console.print()
    for line in dict.fromkeys(said):
        console.print(f"note: {line}", style="dim")


def _print_moves(console: Console, a: TraceReport, b: TraceReport) -> None:
    before, after = ({part.kind.key: part.us for part in mean_segments(steps_of(trace))} for trace in (a, b))
    moves = [(kind.words, before.get(kind.key, 0.0), after.get(kind.key, 0.0)) for kind in KINDS]
    table = Table(
        "average step", *(Column(name, justify="right") for name in ("A", "B", "moved", "of step A")), box=None
    )
    for words, was, now in sorted(moves, key=lambda row: -abs(row[2] - row[1])):
        if was or now:
            table.add_row(words, duration(was), duration(now), _signed(now - was), gain((now - was) / mean_step_us(a)))
    console.print(table)


def _print_walls_moved(console: Console, before: Diagnosis, after: Diagnosis) -> None:
    walls = dict.fromkeys(finding.wall for finding in (*before.walls, *after.walls))
    table = Table("wall, recoverable", Column("A", justify="right"), Column("B", justify="right"), box=None)
    for wall in walls:
        table.add_row(wall.value, *(_recoverable(diagnosis.finding(wall)) for diagnosis in (before, after)))
    if walls:
        console.print()
        console.print(table)


def _recoverable(finding: WallFinding | None) -> str:
    return f"{duration(finding.recoverable_us)}, {percent(finding.share)}" if finding else NONE


def _signed(us: float) -> str:
    return ("+" if us >= 0 else "−") + duration(abs(us))
