"""Draws the figures of the page, each by a pure function from the material to inline SVG. Markdown has tables instead.

A row of `FIGURES` draws the section of that key. Every mark has its numbers as a title.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from markupsafe import Markup

from autotune.looks.fix_names import titles_text
from autotune.looks.quantities import counted, gib, percent, tokens_per_s
from autotune.looks.reasons import MAX_BAND, verdict_text
from autotune.looks.svg import Axis, box, drawing, line, mark, numbers_below, shapes, tag
from autotune.report.bars import path_legend, step_bars
from autotune.report.document import Measured
from autotune.report.document import tokens_per_s as rate_of
from autotune.report.gain_figures import gains_waterfall, predicted_against_obtained
from autotune.report.marks import marks_legend, shape_of
from autotune.report.material import RANKS_APART, Material, memory_limit, status_words
from policies.noise import Noise
from policies.trial import Status, Trial

CHART_PX = 260
MEMORY_BINS, MIN_PX = 12, 3
MEMORY_COLUMN = 0.06  # fraction of the width: the most that half of a trial's column takes
MEMORY_WIDTH = 0.6  # fraction of half a column: half the width of the widest bin of a histogram


def throughput(material: Material) -> Markup:
    """Draws throughput by trial: a line for the best so far, a mark per trial, a band for the noise; empty without
    figures."""
    trials = material.trials
    if not material.figures:
        return Markup("")
    noise = Noise(trials=trials).detectable_gain()
    highs = [high for trial in trials if trial.number in material.figures for high in _rates(trial, material)]
    bands = [(1 + min(noise, MAX_BAND)) * rate for _, rate in _kept(material)]
    axis = Axis(low=0.0, high=1.08 * max([*highs, *bands]), top=14, bottom=CHART_PX - 24)
    column = {trial.number: (index + 0.5) / len(trials) for index, trial in enumerate(trials)}
    parts = [*axis.grid(), *_best_so_far(material, axis, column, noise)]
    for trial in trials:
        parts += _throughput_mark(trial, material, axis, column[trial.number])
    parts += numbers_below(len(trials), CHART_PX - 6, first=[str(trial.number) for trial in trials])
    name = f"Throughput of {len(trials)} trials in tokens/s per {material.unit}; the table below has the figures"
    unit = tag("p", f"tokens/s/{material.unit} by trial", class_="unit")
    return unit + drawing(parts, height=CHART_PX, name=name, class_="chart") + marks_legend(trials)


def memory(material: Material) -> Markup:
    """Draws the peak of every rank by trial, with the limit and the prediction."""
    trials = material.trials
    limits = [limit for trial in trials if (limit := memory_limit(trial))]
    peaks = [peak for m in material.figures.values() for peak in m.peak_gib]
    axis = Axis(low=0.0, high=1.1 * max([*limits, *peaks], default=1.0), top=14, bottom=CHART_PX - 24)
    parts = axis.grid()
    for index, trial in enumerate(trials):
        parts += _memory_column(
            trial, material, axis, (index + 0.5) / len(trials), min(0.5 / len(trials), MEMORY_COLUMN)
        )
    parts += numbers_below(len(trials), CHART_PX - 6, first=[str(trial.number) for trial in trials])
    name = f"Peak memory by rank of {len(trials)} trials against the limit; the table below has the figures"
    unit = tag("p", "GiB per rank by trial", class_="unit")
    return unit + drawing(parts, height=CHART_PX, name=name, class_="chart") + _memory_legend(material)


def losses(material: Material) -> Markup:
    """Draws the loss curves of the reference and the best trial, by step."""
    base, best = material.history.reference, material.history.best
    ours = material.figures.get(best.number) if best else None
    theirs = material.figures.get(base.number) if base else None
    if not base or not best or not ours or not theirs:
        return Markup("")
    values = [*theirs.loss, *ours.loss]
    margin = 0.1 * (max(values) - min(values)) or 0.1
    axis = Axis(low=min(values) - margin, high=max(values) + margin, top=14, bottom=CHART_PX - 24)
    count = max(len(theirs.loss), len(ours.loss))
    parts = axis.grid()
    parts += _curve(theirs, axis, count, "base", "inconclusive", f"trial {base.number}")
    parts += _curve(ours, axis, count, "tuned", "accepted", f"trial {best.number}")
    parts += numbers_below(count, CHART_PX - 6, first=[str(step) for step in range(count)])
    name = f"Loss of {count} steps, trial {base.number} and trial {best.number}; the table below has the figures"
    legend = shapes([("inconclusive", f"base, trial {base.number}"), ("accepted", f"tuned, trial {best.number}")])
    unit = tag("p", "loss by step", class_="unit")
    return unit + drawing(parts, height=CHART_PX, name=name, class_="chart") + legend


FIGURES: dict[str, Callable[[Material], Markup]] = {
    "steps": step_bars,
    "path": path_legend,
    "throughput": throughput,
    "waterfall": gains_waterfall,
    "predictions": predicted_against_obtained,
    "memory": memory,
    "losses": losses,
}


def _memory_legend(material: Material) -> Markup:
    many = any(len(figures.peak_gib) > RANKS_APART for figures in material.figures.values())
    others = "the others, wider where there are more; a stroke at their median" if many else "strokes: the other ranks"
    rows = [("accepted", f"hottest rank ({others})")]
    rows += [("noop", "predicted")] if any(t.proposal.predicted.peak_gib is not None for t in material.trials) else []
    rows += [("oom", "out of memory")] if any(trial.status is Status.OOM for trial in material.trials) else []
    return shapes(rows)


def _kept(material: Material) -> list[tuple[Trial, float]]:
    """Returns the accepted trials with figures, each with its throughput, tokens/s."""
    figures = material.figures
    return [(t, figures[t.number].tokens_per_s_per_gpu) for t in material.trials if t.accepted and t.number in figures]


def _best_so_far(material: Material, axis: Axis, column: dict[int, float], noise: float) -> list[Markup]:
    """Draws the accepted trials joined by steps, each with the band of this noise, a fraction of throughput, above it
    until the next one or the axis end."""
    kept = _kept(material)
    ends = [column[trial.number] for trial, _ in kept[1:]] + [1.0]
    parts: list[Markup] = []
    before: float | None = None
    for (trial, rate), until in zip(kept, ends, strict=False):
        x, level = column[trial.number], axis.y(rate)
        title = f"noise of wall-clock time: {percent(noise)} above {tokens_per_s(rate, unit=material.unit)}"
        if before is not None:
            parts.append(line(x, before, x, level, "best"))
        parts += [
            box(x, max(axis.y((1 + noise) * rate), axis.top), until, level, "band", title=title),
            line(x, level, until, level, "best"),
        ]
        before = level
    return parts


def _rates(trial: Trial, material: Material) -> tuple[float, float]:
    """Returns the 95 % interval of a trial's throughput, tokens/s."""
    step_us = material.figures[trial.number].step_us
    outcome = next(outcome for outcome in trial.outcomes if outcome.ok)
    return rate_of(outcome, step_us.high), rate_of(outcome, step_us.low)


def _throughput_mark(trial: Trial, material: Material, axis: Axis, x: float) -> list[Markup]:
    """Draws a trial at its throughput with its interval; at the bottom if it has none."""
    figures = material.figures.get(trial.number)
    text = f"trial {trial.number}, {titles_text(trial)}: {status_words(trial)}"
    if figures is None:
        return [mark(shape_of(trial), x, axis.bottom - 8, title=f"{text}. {verdict_text(trial)}")]
    low, high = _rates(trial, material)
    value = tokens_per_s(figures.tokens_per_s_per_gpu, unit=material.unit)
    title = f"{text}, {value} (95 % interval {low:,.0f} to {high:,.0f}). {verdict_text(trial)}"
    return [
        line(x, axis.y(low), x, axis.y(high), "whisker"),
        mark(shape_of(trial), x, axis.y(figures.tokens_per_s_per_gpu), title=title),
    ]


def _memory_column(trial: Trial, material: Material, axis: Axis, x: float, half: float) -> list[Markup]:
    figures = material.figures.get(trial.number)
    limit = memory_limit(trial)
    parts = (
        [line(x - half, axis.y(limit), x + half, axis.y(limit), "limit", title=f"limit {gib(limit)}")] if limit else []
    )
    predicted = trial.proposal.predicted.peak_gib
    if predicted is not None:
        at = min(axis.y(predicted), axis.bottom) if predicted <= axis.high else axis.top
        parts.append(mark("noop", x - 0.7 * half, at, title=f"trial {trial.number}: {gib(predicted)} predicted"))
    if figures and figures.peak_gib:
        parts += _peaks(trial, figures.peak_gib, axis, x, half)
    elif trial.status is Status.OOM and limit:
        parts.append(mark("oom", x, axis.y(limit), title=f"trial {trial.number}: out of memory. {verdict_text(trial)}"))
    return parts


def _peaks(trial: Trial, peaks: Sequence[float], axis: Axis, x: float, half: float) -> list[Markup]:
    hottest = max(range(len(peaks)), key=lambda rank: peaks[rank])
    title = f"trial {trial.number}, rank {hottest}: {gib(peaks[hottest])}, the hottest"
    spread = line(x, axis.y(min(peaks)), x, axis.y(max(peaks)), "whisker")
    hot = mark("accepted", x, axis.y(peaks[hottest]), title=title)
    if len(peaks) > RANKS_APART:
        return [spread, *_distribution(trial, peaks, axis, x, half), hot]
    strokes = [
        line(x - half / 3, axis.y(peak), x + half / 3, axis.y(peak), "stroke", title=f"rank {rank}: {gib(peak)}")
        for rank, peak in enumerate(peaks)
    ]
    return [spread, *strokes, hot]


def _distribution(trial: Trial, peaks: Sequence[float], axis: Axis, x: float, half: float) -> list[Markup]:
    """Draws the peaks of many ranks as a horizontal histogram: the width is the share of ranks near that peak."""
    low, high = min(peaks), max(peaks)
    bins = [0] * MEMORY_BINS
    for peak in peaks:
        bins[min(int((peak - low) / (high - low or 1.0) * MEMORY_BINS), MEMORY_BINS - 1)] += 1
    edges = [low + (high - low) * number / MEMORY_BINS for number in range(MEMORY_BINS + 1)]
    wide = MEMORY_WIDTH * half / max(bins)
    boxes = [
        box(x - wide * ranks, axis.y(upper), x + wide * ranks, max(axis.y(lower), axis.y(upper) + MIN_PX), "ranks",
            title=f"trial {trial.number}: {counted(ranks, 'rank')} of {len(peaks)} at {gib(lower)} to {gib(upper)}")
        for ranks, (lower, upper) in zip(bins, pairwise(edges), strict=True)
        if ranks
    ]  # fmt: skip
    middle = median(peaks)
    at = axis.y(middle)
    return [*boxes, line(x - half / 3, at, x + half / 3, at, "stroke", title=f"the median of the ranks: {gib(middle)}")]


def _curve(figures: Measured, axis: Axis, count: int, class_: str, shape: str, name: str) -> list[Markup]:
    points = [((step + 0.5) / count, axis.y(loss), step, loss) for step, loss in enumerate(figures.loss)]
    lines = [line(x1, y1, x2, y2, class_) for (x1, y1, *_), (x2, y2, *_) in pairwise(points)]
    marks = [mark(shape, x, y, title=f"{name}, step {step}: loss {loss:.5g}") for x, y, step, loss in points]
    return lines + marks
