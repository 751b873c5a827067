"""The input of every section and figure of a report: the study with its figures, and words that sections share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from autotune.looks.tables import Table
from autotune.report.document import Document, Measured, measured
from autotune.report.path import PathStep, accepted_path
from autotune.tuning.history import History
from policies.surrogate.surrogate import Surrogate
from policies.trial import Status, Trial
from policies.tuner.ideas import Idea
from policies.tuner.tuner import Tuner
from trainer.recipe import Recipe

RANKS_APART = 16  # up to this number every rank is shown; beyond, the distribution


@dataclass(frozen=True, kw_only=True)
class Record:
    """An entry too long for a table row: a heading, (name, text) pairs and tables; empty texts are left out. `bars` is
    its figure, on the page only."""

    heading: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...] = ()
    bars: Markup | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of a report. `key` is its anchor and the name of its figure, if it has one."""

    key: str
    title: str
    paragraphs: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()
    table: Table | None = None


@dataclass(frozen=True, kw_only=True)
class Material:
    """A study and the figures that sections need, computed once.

    `bursts`: the folder of its bursts, None if only the journal is available.
    """

    history: History
    document: Document
    figures: dict[int, Measured] = field(default_factory=dict)  # trial that ran → its figures
    bursts: Path | None = None

    @property
    def trials(self) -> list[Trial]:
        return self.history.trials

    @cached_property
    def path(self) -> list[PathStep]:
        return accepted_path(self.trials)

    @cached_property
    def unit(self) -> str:
        return self.history.unit

    @cached_property
    def rejected(self) -> list[Trial]:
        kept = {step.trial.number for step in self.path}
        return [trial for trial in self.trials if trial.number not in kept]

    @cached_property
    def surrogate(self) -> Surrogate | None:
        """Returns the surrogate of the cluster after all trials; None without a study."""
        return None if self._tuner is None else self._tuner.surrogate(self.trials)

    @cached_property
    def ideas(self) -> tuple[Idea, ...]:
        """Returns the fixes that were considered for the best trial but not proposed; () if no recipe runs."""
        best = self.history.best
        return () if self._tuner is None or best is None else self._tuner.rejected_ideas(best, self.trials)

    @cached_property
    def _tuner(self) -> Tuner | None:
        study = self.history.study
        return (
            None
            if study is None
            else Tuner(Recipe.model_validate(study.recipe), study.seed, self.history.lessons, probed=self.history.rows)
        )

    def trial(self, number: int | None) -> Trial | None:
        return None if number is None else self.history.attempted.get(number)


def material_of(history: History, document: Document, *, bursts: Path | None = None) -> Material:
    ran = ((trial.number, measured(trial)) for trial in history.trials)
    figures = {number: found for number, found in ran if found is not None}
    return Material(history=history, document=document, figures=figures, bursts=bursts)


def status_words(trial: Trial) -> str:
    """Returns the verdict of a trial with status OK, else the status; `refused by the rules` for one without a
    burst."""
    if trial.status is Status.OK and trial.verdict:
        return f"{trial.verdict} (provisional)" if trial.provisional else trial.verdict.value
    words = {Status.OOM: "out of memory", Status.FAILED: "failed", Status.NOOP: "no effect"}
    return words.get(trial.status, trial.status.value) if trial.bursts else "refused by the rules"


def memory_limit(trial: Trial) -> float | None:
    """Returns the memory limit of one rank, GiB: as the burst reported it, else as in the recipe."""
    under = next((outcome.limit_gib for outcome in trial.outcomes if outcome.limit_gib), None)
    return under if under is not None else trial.recipe.memory_limit_gib
