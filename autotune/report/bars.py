"""The stacked bars: where a step's time went, trial by trial and rank by rank. The colours are the walls'."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from analyzers.diagnosis import Partition, TraceReport
from autotune.quantities import duration, percent
from autotune.report.material import Material, fix_title, status_words
from autotune.report.svg import box, drawing, place, tag
from autotune.segments import KINDS, Kind, Segment, mean_segments, mean_step_us, segments, slowest, steps_of
from policies.trial import Trial

BAR_PX = 24
RANKS_SHOWN = 8  # bars of more ranks say nothing new: the slowest are shown, and how many are not
LABEL_FROM = 0.09  # share of a bar that has room for its figure; below WIDE_FROM only on wide pages
WIDE_FROM = 0.16


def step_bars(material: Material) -> Markup:
    """One bar a traced trial, all on one scale: the average step of its slowest rank."""
    found = ((trial, slowest(trial.analysis)) for trial in material.trials if trial.analysis)
    traced = [(trial, trace) for trial, trace in found if trace is not None]
    longest = max((mean_step_us(trace) for _, trace in traced), default=1.0)
    bars = [_trial_bar(trial, trace, longest) for trial, trace in traced]
    return Markup("").join([_legend(material), *bars])


def rank_bars(trial: Trial) -> Markup:
    """Every traced step of every rank of one trial, on one scale; the slowest ranks where there are many."""
    traces = sorted(trial.analysis.traces, key=mean_step_us, reverse=True) if trial.analysis else []
    shown = sorted(traces[:RANKS_SHOWN], key=lambda trace: trace.rank or 0)
    longest = max((step.duration_us for trace in traces for step in steps_of(trace)), default=1.0)
    bars = [
        _bar(segments(step), longest, _step_label(trace, step, index))
        for trace in shown
        for index, step in enumerate(steps_of(trace))
    ]
    left_out = len(traces) - len(shown)
    note = tag("p", f"The {len(shown)} slowest ranks; {left_out} more are not drawn.", class_="note")
    return Markup("").join([*bars, note] if left_out else bars)


def _trial_bar(trial: Trial, trace: TraceReport, longest: float) -> Markup:
    wall = trial.analysis.diagnosis.wall.value if trial.analysis else ""
    of_rank = f", rank {trace.rank}" if trace.rank is not None else ""
    label = (
        f"trial {trial.number} · {fix_title(trial)} · {status_words(trial)} · "
        f"{duration(mean_step_us(trace))}{of_rank} · wall: {wall}"
    )
    return _bar(mean_segments(steps_of(trace)), longest, label)


def _step_label(trace: TraceReport, step: Partition, index: int) -> str:
    rank = f"rank {trace.rank}" if trace.rank is not None else trace.path.rsplit("/", 1)[-1]
    return f"{rank} · {step.name or f'step {index}'} · {duration(step.duration_us)}"


def _bar(parts: Sequence[Segment], longest: float, label: str) -> Markup:
    """A label and the stacked bar below it; `longest` is the time that fills the width."""
    total = sum(part.us for part in parts) or 1.0
    drawn: list[Markup] = []
    x = 0.0
    for part in parts:
        width = part.us / longest
        share = percent(part.us / total)
        drawn.append(
            box(x, 0, x + width, BAR_PX, f"k-{part.kind.key}", title=f"{part.kind.words}: {duration(part.us)}, {share}")
        )
        if width >= LABEL_FROM:
            class_ = f"in t-{part.kind.key}" + ("" if width >= WIDE_FROM else " wide")
            drawn.append(
                tag("text", percent(part.us / total, 0), x=place(x + width / 2), y=str(BAR_PX // 2 + 4), class_=class_)
            )
        x += width
    said = ", ".join(f"{part.kind.words} {percent(part.us / total)}" for part in parts)
    return tag("p", label, class_="bar-label") + drawing(drawn, height=BAR_PX, name=f"{label}: {said}", class_="bar")


def _legend(material: Material) -> Markup:
    """The kinds of time that occur anywhere in the study, in drawing order."""
    steps = [
        step
        for trial in material.trials
        if trial.analysis
        for trace in trial.analysis.traces
        for step in steps_of(trace)
    ]
    seen = {segment.kind.key for step in steps for segment in segments(step)}
    return _swatches([kind for kind in KINDS if kind.key in seen])


def _swatches(kinds: Sequence[Kind]) -> Markup:
    items = [
        tag(
            "li", tag("svg", box(0, 0, 1, 12, f"k-{kind.key}"), width="12", height="12", aria_hidden="true"), kind.words
        )
        for kind in kinds
    ]
    return tag("ul", *items, class_="legend")
