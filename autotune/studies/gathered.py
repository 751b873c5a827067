"""Collects the studies below a folder from their journals, one row each. Unreadable ones are listed apart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from autotune.looks.acting import acting_changes
from autotune.looks.quantities import first_changes
from autotune.report.document import document_of
from autotune.report.head import ran_on
from autotune.report.walls import walls_met
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_study
from autotune.tuning.lines import cost_in_words, wall_of
from autotune.tuning.study import held, suspended
from autotune.tuning.study_status import State, study_status
from trainer.errors import BadInputError, Problem
from trainer.recipe import Recipe

DEPTHS = ("", "*/", "*/*/")  # glob prefixes: studies at most two folders down


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One study. The speed-up is over its reference; `walls` are those of its accepted trials, `wall` that of
    the best."""

    folder: str
    study: str
    started: str  # the day, UTC
    state: State
    status: str | None
    model: str
    ran_on: str
    bursts: int
    gpu_hours: float
    cost: str
    simulated: bool
    speedup: float | None
    speedup_ci: tuple[float, float] | None
    speedup_provisional: bool = False  # fewer than two bursts per side
    provisional: bool = False  # the best trial was judged before its verdict
    changes: dict[str, tuple[Any, Any]]
    changed: str
    walls: list[str]
    wall: str | None


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    why: str


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `studies --json`; studies in the order they started."""

    schema: int = 1
    folder: str
    studies: list[Row]
    unread: list[Unread]


@dataclass(frozen=True, kw_only=True)
class Found:
    """Input of the page and the terminal: the rows, and the history of each."""

    document: Gathered
    histories: tuple[History, ...]


def gathered(folder: Path, *, now: float) -> Found:
    """Returns the studies in or below the folder. Raises BadInputError if there are none, or it cannot be read."""
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise BadInputError(Problem(where=str(folder), what="it cannot be read", hint="check its permissions"))
    rows: list[tuple[float, Row, History]] = []
    unread: list[Unread] = []
    for study in _folders(folder):
        try:
            history = read_study(study)
        except BadInputError as error:
            problem = error.problems[0]
            unread.append(Unread(folder=str(study), why=f"{Path(problem.where).name}: {problem.what}"))
            continue
        rows.append((history.study.at if history.study else 0.0, _row(study, history, now), history))
    if not rows and not unread:
        hint = "name the folder with the studies; `moe-autotune run` makes studies/"
        raise BadInputError(Problem(where=str(folder), what="no study here", hint=hint))
    rows.sort(key=lambda row: (row[0], row[1].folder))
    document = Gathered(folder=str(folder), studies=[row for _, row, _ in rows], unread=unread)
    return Found(document=document, histories=tuple(history for *_, history in rows))


def _folders(folder: Path) -> Iterator[Path]:
    for depth in DEPTHS:
        yield from (path.parent for path in sorted(folder.glob(f"{depth}{JOURNAL}")))


def _row(folder: Path, history: History, now: float) -> Row:
    assert history.study is not None  # read_study refuses a journal without its first line
    recipe = Recipe.model_validate(history.study.recipe)
    document = document_of(history)
    status = study_status(history, folder=str(folder), now=now, held=held(folder), suspended=suspended(folder))
    changes = recipe.diff(history.best.recipe) if history.best else {}
    wall = wall_of(history.best)
    return Row(
        folder=str(folder),
        study=document.study,
        started=f"{datetime.fromtimestamp(history.study.at, tz=UTC):%Y-%m-%d}",
        state=status.state,
        status=status.status,
        model=recipe.model if isinstance(recipe.model, str) else f"{recipe.architecture.num_layers} layers",
        ran_on=ran_on(recipe),
        bursts=status.bursts,
        gpu_hours=document.gpu_hours,
        cost=cost_in_words(history),
        simulated=document.simulated,
        speedup=document.speedup,
        speedup_ci=document.speedup_ci,
        speedup_provisional=document.speedup_provisional,
        provisional=history.best is not None and history.best.provisional,
        changes=changes,
        changed=first_changes(acting_changes(history.best.recipe, changes)) if history.best else "",
        walls=walls_met([trial for trial in history.trials if trial.accepted]),
        wall=str(wall) if wall else None,
    )
