"""Writes the files of a bisection from its journal: report.json, report.html, and fixed_recipe.yaml if removing the
culprits gives a legal recipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from analyzers.diagnosis import Analysis
from autotune.bisect.document import Bisected, document_of, fixed_recipe, problem_of
from autotune.bisect.words import (
    columns_of_bursts,
    figure,
    headline,
    measure_text,
    other_text,
    rows_of_bursts,
    rows_of_differences,
)
from autotune.compare.comparison import Comparison, compared, moved_parts, signed
from autotune.compare.comparison import headline as moved_headline
from autotune.compare.terminal import INNER_SHOWN
from autotune.diagnose.terminal import SHOWN
from autotune.looks.quantities import UNMEASURED, duration, percent
from autotune.looks.render import render
from autotune.looks.tables import Table
from autotune.looks.text_tables import print_table
from autotune.looks.wrapping import say
from autotune.output import replace_file
from autotune.tuning.history import History
from autotune.tuning.journal import read_study
from autotune.tuning.lines import cost_in_words

MIN_OTHER_PROBABILITY = 0.01  # a page names another set of culprits if its probability is at least this
HTML, JSON, FIXED = "report.html", "report.json", "fixed_recipe.yaml"


def write_bisection(folder: Path) -> Path:
    """Writes the files of a bisection and returns the page's path.

    Raises BadInputError if the journal cannot be read.
    """
    history = read_study(folder)
    problem = problem_of(history)
    document = document_of(history, problem)
    encoded = msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=1)
    replace_file(folder / JSON, encoded.decode() + "\n")
    replace_file(folder / HTML, page(document, history))
    if (fixed := fixed_recipe(problem, document)) is not None:
        replace_file(folder / FIXED, fixed.to_yaml())
    return folder / HTML


def show_bisection(history: History, console: Console) -> None:
    """Prints the answer, the differences and the bursts."""
    found = document_of(history, problem_of(history))
    say(console, headline(found), style="bold")
    if found.simulated:
        say(console, UNMEASURED, lead="simulated: ")
    if by := measure_text(found):
        say(console, by, lead="compared: ")
    for each in found.others if found.answered == "undecided" else []:
        say(console, other_text(each), lead="or: ")
    header = ("<difference, A → B", "predicted", "suspicion", "<verdict")
    print_table(console, "differences, the most suspect first", header, _escaped(rows_of_differences(found)))
    number, recipe, *times = columns_of_bursts(found)
    rows = _escaped(rows_of_bursts(found))
    print_table(console, "bursts, per token", (number, f"<{recipe}", *times), rows)
    say(console, cost_in_words(history), lead="cost: ")


def _escaped(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Returns the rows with `[` escaped, which the console would read as markup."""
    return [[escape(cell) for cell in row] for row in rows]


def page(found: Bisected, history: History) -> str:
    """Renders the page: the question, the answer, and the traced steps of the two ends by part."""
    ends = _compared(history)
    return render(
        "bisection.html.j2",
        name=found.study,
        figure=figure(found),
        headline=headline(found),
        simulated=found.simulated,
        question=f"which of {len(found.differences)} differences between A and B",
        cost=cost_in_words(history),
        measure=measure_text(found),
        noise=percent(found.noise) if found.noise is not None else "",
        idle=", ".join(found.idle),
        others=[other_text(each) for each in found.others if each.probability >= MIN_OTHER_PROBABILITY],
        differences=Table(
            columns=("difference, A → B", "predicted", "suspicion", "verdict"),
            rows=tuple(rows_of_differences(found)),
            numbers=(1, 2),
        ),
        bursts=Table(columns=columns_of_bursts(found), rows=tuple(rows_of_bursts(found)), numbers=(0, 2, 3)),
        moved=moved_headline(ends) if ends else "",
        parts=_parts(ends) if ends else None,
    )


def _compared(history: History) -> Comparison | None:
    """Returns the comparison of the traced ends; None unless both were traced."""
    sides: list[Analysis] = [
        trial.analysis for trial in list(history.attempted.values())[:2] if trial.analysis is not None
    ]
    return compared(*sides) if len(sides) == 2 and all(side.traces for side in sides) else None


def _parts(ends: Comparison) -> Table:
    rows = tuple(
        (words, duration(move.a_us), duration(move.b_us), signed(move.moved_us))
        for words, move in moved_parts(ends, least=SHOWN, least_inner=INNER_SHOWN, mark="· ")
    )
    return Table(columns=("part of the step", "A", "B", "moved"), rows=rows, numbers=(1, 2, 3))
