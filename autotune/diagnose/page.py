"""Renders `diagnose --html`: the verdict, every step of every rank, the worst step's timeline, kernels, ranks,
memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from analyzers.diagnosis import Analysis, KernelTime, Partition, TraceReport, Wall
from analyzers.errors import TraceError
from analyzers.kernel_classes import GEMM
from analyzers.lanes import Kept, Lanes
from autotune.diagnose.lanes import lanes_json, lanes_legend, safe_json, too_many
from autotune.diagnose.memory import memory_curve, memory_table
from autotune.diagnose.next_steps import NextSteps, flag_words, gives_back_words
from autotune.diagnose.ranks import rank_bars, rank_table
from autotune.diagnose.steps import step_bar, steps_legend
from autotune.diagnose.terminal import (
    NOT_A_VERDICT,
    cause_evidence,
    described,
    gives_back,
    judged_words,
    memory_words,
    notes,
    precision,
    rank_words,
    recoverable_words,
)
from autotune.diagnose.tree import nested
from autotune.diagnose.views import Drawn, drawn_steps
from autotune.looks.fix_pages import plain_paragraphs
from autotune.looks.kernel_names import printable
from autotune.looks.named import NamedRow, named_row
from autotune.looks.quantities import duration, percent
from autotune.looks.render import render, script
from autotune.looks.segments import (
    by_size,
    counted_steps,
    judged_steps,
    mean_of,
    mean_segments,
    mean_step_us,
    mean_us,
    segments,
    slowest,
    steps_of,
    within,
    words_of,
)
from autotune.looks.svg import tag
from autotune.looks.tables import Table
from policies.advice.advice import ADVISED

BARS = 24  # most steps, all ranks together, that are drawn one by one; if there are more, averages by rank
RANKS = 64  # most bars of averages: those of the slowest ranks
EVERY_STEP = 200  # most bars in the collapsed part
KERNELS_OF_A_CLASS = 10
RANGES = 40
UNKNOWN = 20  # most unknown kernels that are named


def diagnosis_page(analysis: Analysis, name: str, steps: NextSteps | None = None, kept: Kept | None = None) -> str:
    """Renders the page; `steps`: what to try next; `kept`: traces still in memory.

    Other traces are read again for their events, if they still exist.
    """
    trace = slowest(analysis)
    drawn, first, missing = _drawn(analysis, trace, kept) if trace else ({}, None, "")
    found, tree = (first.worst, first.tree) if first else (None, ())
    diagnosis, gained = analysis.diagnosis, recoverable_words(analysis)
    values = {
        "step_bars": _step_bars(analysis),
        "more_bars": _more_bars(analysis),
        "step_table": _step_table(analysis) if trace else None,
        "step_table_of": judged_words(analysis),
        "rank_bars": rank_bars(analysis),
        "rank_table": rank_table(analysis),
        "memory": memory_words(trace.memory) if trace and trace.memory else "",
        "memory_curve": memory_curve(trace) if trace else None,
        "memory_table": memory_table(trace.memory if trace else None),
        "kernels": _kernels(trace) if trace else [],
        "ranges": _ranges(trace) if trace else [],
        "next_steps": steps,
        "fixes": _fix_cards(steps) if steps else [],
        "lanes": lanes_json(found) if found else None,
        "lane_views": safe_json(_views(analysis, trace, drawn)) if trace and found else None,
        "tree": nested(tree) if tree else None,
        "lanes_missing": missing,
    }
    return render(
        "diagnosis.html.j2",
        name=printable(name),
        figure=diagnosis.headline,
        simulated=analysis.simulated,
        figure_note=diagnosis.cut_short
        or gained
        or ("no wall is named" if diagnosis.wall is Wall.UNDETERMINED else ""),
        led_to=cause_evidence(diagnosis),
        walls_note=NOT_A_VERDICT if diagnosis.cut_short else "",
        facts={
            "Why": diagnosis.because,
            "Seen in": described(analysis.traces) if analysis.traces else "no traces",
            "Slowest": _slowest_words(analysis, trace) if trace else "",
        },
        sections=[(id_, title) for id_, title in SECTIONS if id_ in ("walls", "coverage") or values.get(SHOWN_BY[id_])],
        slowest=_called(analysis, trace) if trace else "",
        walls=_walls(analysis),
        lanes_note=_lanes_note(trace, found) if trace and found else "",
        lanes_legend=lanes_legend(found) if found else "",
        lanes_js=script("lanes.js") + script("lanes_tools.js"),
        trace_table=_trace_table(analysis),
        notes=notes(analysis.traces, UNKNOWN) if analysis.traces else [],
        **values,
    )


SECTIONS = (
    ("steps", "Steps"),
    ("walls", "Walls"),
    ("next", "What to try next"),
    ("lanes", "Timeline"),
    ("ranks", "Ranks"),
    ("memory", "Memory"),
    ("kernels", "Kernels"),
    ("ranges", "Ranges"),
    ("tree", "Call tree"),
    ("coverage", "Coverage"),
)
SHOWN_BY = {"steps": "step_bars", "next": "next_steps", "lanes": "lanes", "ranks": "rank_bars", "memory": "memory"} | {
    name: name for name in ("kernels", "ranges", "tree", "walls", "coverage")
}


def _views(analysis: Analysis, first: TraceReport, drawn: Mapping[int, Drawn]) -> list[dict[str, Any]]:
    """Returns ranks and their steps for the menus of the timeline; `packed` is null for the step shown first."""
    return [
        {
            "rank": rank_words(trace, analysis.traces) or "the one trace",
            "steps": [
                {
                    "step": f"{step.name or 'whole trace'}, {duration(step.duration_us)}",
                    "packed": None if _is_first(trace, step, first) else drawn[at].views[number],
                }
                for number, step in enumerate(steps_of(trace))
                if _is_first(trace, step, first) or number in drawn[at].views
            ],
        }
        for at, trace in enumerate(analysis.traces)
        if at in drawn and (drawn[at].views or trace is first)
    ]


def _is_first(trace: TraceReport, step: Partition, first: TraceReport) -> bool:
    return trace is first and step is _worst(first)


def _drawn(analysis: Analysis, trace: TraceReport, kept: Kept | None) -> tuple[dict[int, Drawn], Drawn | None, str]:
    """Returns the drawn steps by index of the trace, those of `trace`, the slowest rank, with the events of its worst
    step, and "" (or why nothing can be drawn)."""
    try:
        drawn = drawn_steps(analysis, trace, _worst(trace), kept)
    except TraceError as error:
        return {}, None, f"The events of the worst step cannot be drawn: {error.path} {error.what}."
    return drawn, drawn[analysis.traces.index(trace)], ""


def _worst(trace: TraceReport) -> Partition:
    return max(steps_of(trace), key=lambda step: step.duration_us)


def _called(analysis: Analysis, trace: TraceReport) -> str:
    return rank_words(trace, analysis.traces) or "the one trace"


def _slowest_words(analysis: Analysis, trace: TraceReport) -> str:
    steps = len(trace.steps)
    average = f"{duration(mean_step_us(trace))} {'per step on average' if steps else 'in all'}"
    worst = f", {duration(_worst(trace).duration_us)} in the worst, {_worst(trace).name}" if steps > 1 else ""
    return f"{_called(analysis, trace)}: {average}{worst}"


def _lanes_note(trace: TraceReport, found: Lanes) -> str:
    name = _worst(trace).name or "the whole trace"
    many = (
        " Where there are too many, the shortest are drawn together with their neighbours." if too_many(found) else ""
    )
    whole = f"{len(found):,} events in {len(found.lanes)} lanes"
    worst = "the worst step" if len(trace.steps) > 1 else "shown first"
    step_us, recorded = _worst(trace).duration_us, duration(found.duration_us)
    length = recorded if recorded == duration(step_us) else f"{recorded} recorded, counted as {duration(step_us)}"
    return f"{printable(name)} of {_short(trace)}, {worst}, {length}: {whole}.{many}"


def _short(trace: TraceReport) -> str:
    return rank_words(trace) if trace.rank is not None else "this trace"


def _step_bars(analysis: Analysis) -> Markup | None:
    """Draws every step of every rank; if there are too many, the average steps of the slowest ranks. None without
    traces."""
    traces = analysis.traces
    if not traces:
        return None
    every = [step for trace in traces for step in steps_of(trace)]
    longest = max((step.duration_us for step in every), default=1.0) or 1.0
    if len(every) <= BARS:
        return Markup("").join([steps_legend(every), *_each_step(analysis, longest)])
    ranked = sorted(traces, key=mean_step_us, reverse=True)[:RANKS]
    shown = [trace for trace in traces if any(trace is one for one in ranked)]
    bars = [step_bar(mean_segments(counted_steps(trace)), longest, _average_label(analysis, trace)) for trace in shown]
    left = len(traces) - len(shown)
    note = (
        tag("p", f"The {len(shown)} slowest ranks; {left} more are not drawn.", class_="note") if left else Markup("")
    )
    return Markup("").join([steps_legend(every), *bars, note])


def _more_bars(analysis: Analysis) -> Markup | None:
    """Draws the first EVERY_STEP steps if `_step_bars` draws only averages; else None."""
    every = [step.duration_us for trace in analysis.traces for step in steps_of(trace)]
    if len(every) <= BARS:
        return None
    bars = _each_step(analysis, max(every) or 1.0)[:EVERY_STEP]
    note = tag("p", f"The first {len(bars)} of {len(every)} steps.", class_="note")
    return Markup("").join([*bars, note] if len(bars) < len(every) else bars)


def _each_step(analysis: Analysis, longest: float) -> list[Markup]:
    return [
        step_bar(segments(step), longest, _step_label(analysis, trace, step))
        for trace in analysis.traces
        for step in steps_of(trace)
    ]


def _step_label(analysis: Analysis, trace: TraceReport, step: Partition) -> str:
    parts = (rank_words(trace, analysis.traces), step.name or "whole trace", duration(step.duration_us))
    return " · ".join(printable(part) for part in parts if part)


def _average_label(analysis: Analysis, trace: TraceReport) -> str:
    parts = (
        rank_words(trace, analysis.traces),
        f"average of {len(counted_steps(trace))} steps",
        duration(mean_step_us(trace)),
    )
    return " · ".join(printable(part) for part in parts if part)


def _step_table(analysis: Analysis) -> Table:
    """Returns the step that the walls are judged by, divided by kind of time, and each kind by its parts."""
    steps = judged_steps(analysis)
    whole = mean_us(steps) or 1.0
    rows: list[tuple[str, str, str]] = []
    for part in mean_segments(steps):
        rows.append((part.kind.words, duration(part.us), percent(part.us / whole)))
        for name, us in within(part.kind, steps):
            rows.append((f"· {words_of(name)}", duration(us), percent(us / whole)))
            formats = by_size(mean_of(steps, lambda step: step.gemm_by_precision)) if name == GEMM else []
            rows += [(f"· · {what}", duration(time), percent(time / whole)) for what, time in formats]
    return Table(columns=("part", "time", "share"), rows=tuple(rows), numbers=(1, 2))


def _fix_cards(steps: NextSteps) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Returns each fix's title with its gain, its flags, its cost, and its page."""
    return [
        (
            ": ".join(part for part in (fix["title"], gives_back_words(fix)) if part),
            flag_words(fix),
            fix["costs"],
            plain_paragraphs(ADVISED[fix["fix"]].page),
        )
        for fix in steps.fixes
    ]


def _walls(analysis: Analysis) -> list[tuple[str, list[str]]]:
    walls = analysis.diagnosis.walls
    return [(f"{finding.wall.value}: {gives_back(finding)}", finding.evidence) for finding in walls]


def _kernels(trace: TraceReport) -> list[tuple[str, list[NamedRow]]]:
    """Returns (class and its time, its longest kernels), the class with the most time first."""
    groups: dict[str, list[KernelTime]] = {}
    for kernel in trace.kernels:
        groups.setdefault(kernel.compute_class, []).append(kernel)
    whole = sum(kernel.total_us for kernel in trace.kernels) or 1.0
    totals = {name: sum(kernel.total_us for kernel in of) for name, of in groups.items()}
    return [
        (
            f"{words_of(name)}, {duration(totals[name])}",
            [_kernel_row(kernel, whole) for kernel in _longest(groups[name])],
        )
        for name in sorted(groups, key=lambda name: (-totals[name], name))
    ]


def _longest(kernels: Sequence[KernelTime]) -> list[KernelTime]:
    return sorted(kernels, key=lambda kernel: (-kernel.total_us, kernel.name))[:KERNELS_OF_A_CLASS]


def _kernel_row(kernel: KernelTime, whole_us: float) -> NamedRow:
    figures = (
        duration(kernel.total_us),
        percent(kernel.total_us / whole_us),
        f"{kernel.count:,}",
        duration(kernel.total_us / max(kernel.count, 1)),
    )
    kind = " · ".join(word for word in (kernel.kind, precision(kernel)) if word)
    return named_row(figures, kernel.name, after=f" ({kind})" if kind else "")


def _ranges(trace: TraceReport) -> list[tuple[str, list[NamedRow]]]:
    ranked = sorted(trace.ranges, key=lambda one: (-one.device_all_threads_us, -one.host_us, one.name))[:RANGES]
    rows = [
        named_row(
            (
                duration(one.device_all_threads_us),
                duration(one.host_us),
                f"{one.count:,}",
                f"{one.kernels_all_threads:,}",
            ),
            one.name,
        )
        for one in ranked
    ]
    return [("", rows)] if rows else []


def _trace_table(analysis: Analysis) -> Table:
    rows = tuple(
        (
            printable(trace.path),
            "–" if trace.rank is None else str(trace.rank),
            trace.format,
            ", ".join(map(str, trace.devices)) or "CPU",
            str(len(trace.steps)),
            f"{trace.coverage.kernels:,}",
            percent(trace.coverage.device_time_classified),
            duration(trace.span.duration_us),
        )
        for trace in analysis.traces
    )
    header = ("trace", "rank", "format", "device", "steps", "kernels", "in known kernels", "span")
    return Table(columns=header, rows=rows, numbers=(1, 4, 5, 6, 7))
