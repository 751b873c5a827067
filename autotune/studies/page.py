"""Renders `studies --html`: one page that compares the studies of a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from analyzers.diagnosis import Partition
from autotune.diagnose.steps import step_bar, steps_legend
from autotune.looks.quantities import duration
from autotune.looks.render import render
from autotune.looks.segments import counted_steps, mean_segments, mean_step_us, slowest, steps_of
from autotune.looks.svg import Axis, box, drawing, line, numbers_below, tag
from autotune.studies.gathered import Found, Row
from autotune.studies.words import gain_words, state_words, studies_words
from autotune.tuning.history import History
from policies.trial import Trial

CHART_PX = 220


@dataclass(frozen=True, kw_only=True)
class Card:
    """One study; `report` is its page relative to this one, empty if there is none."""

    number: int
    row: Row
    gain: str
    state: str
    report: str
    bars: Markup


def studies_page(found: Found, *, page_folder: Path) -> str:
    """Renders the page; its links are relative to the folder `page_folder`."""
    pairs = list(zip(found.document.studies, found.histories, strict=True))
    cards = [_card(number, row, history, page_folder) for number, (row, history) in enumerate(pairs, 1)]
    steps = [step for _, history in pairs for trial in _shown(history) for step in _steps(trial)]
    return render(
        "studies.html.j2",
        folder=found.document.folder,
        figure=studies_words(len(cards)),
        chart=_chart(found.document.studies) if any(row.speedup for row in found.document.studies) else None,
        cards=cards,
        legend=steps_legend(steps),
        unread=found.document.unread,
    )


def _card(number: int, row: Row, history: History, page_folder: Path) -> Card:
    report = Path(row.folder) / "report.html"
    return Card(
        number=number,
        row=row,
        gain=gain_words(row),
        state=state_words(row),
        report=os.path.relpath(report, page_folder) if report.is_file() else "",
        bars=_bars(history),
    )


def _chart(rows: list[Row]) -> Markup:
    """Draws the speed-up of each study as a column that starts at 1, with its interval."""
    highest = max((row.speedup_ci[1] for row in rows if row.speedup_ci), default=1.0)
    axis = Axis(low=min(1.0, *(row.speedup_ci[0] for row in rows if row.speedup_ci)), high=max(1.05 * highest, 1.1),
                top=14, bottom=CHART_PX - 24)  # fmt: skip
    parts = axis.grid()
    for index, row in enumerate(rows):
        x, half = (index + 0.5) / len(rows), min(0.3 / len(rows), 0.03)
        if row.speedup is None or row.speedup_ci is None:
            continue
        text = f"{row.folder}: {gain_words(row)}"
        parts.append(box(x - half, axis.y(1.0), x + half, axis.y(row.speedup), "k-compute", title=text))
        parts.append(line(x, axis.y(row.speedup_ci[0]), x, axis.y(row.speedup_ci[1]), "whisker"))
    parts += numbers_below(len(rows), CHART_PX - 6, first=[str(number) for number in range(1, len(rows) + 1)])
    name = f"Speed-up of {len(rows)} studies with its 95 % interval; the list below has the figures"
    unit = tag("p", "speed-up by study, from 1× on, with its 95 % interval", class_="unit")
    return unit + drawing(parts, height=CHART_PX, name=name, class_="chart")


def _bars(history: History) -> Markup:
    """Draws the average traced step of the reference and of the best, on one scale."""
    traced = [(trial, trace) for trial in _shown(history) if trial.analysis and (trace := slowest(trial.analysis))]
    longest = max((mean_step_us(trace) for _, trace in traced), default=1.0)
    return Markup("").join(
        step_bar(mean_segments(counted_steps(trace)), longest, _label(trial, mean_step_us(trace), history))
        for trial, trace in traced
    )


def _label(trial: Trial, step_us: float, history: History) -> str:
    when = "after" if trial is history.best else "before"
    return f"{when} · trial {trial.number} · {duration(step_us)} traced"


def _shown(history: History) -> list[Trial]:
    both = (history.reference, history.best)
    return list({trial.number: trial for trial in both if trial is not None}.values())


def _steps(trial: Trial) -> list[Partition]:
    trace = slowest(trial.analysis) if trial.analysis else None
    return steps_of(trace) if trace else []
