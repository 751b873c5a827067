"""Reads the recipe to export: a recipe file, the best recipe of a study, or that of one trial (`STUDY/3`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autotune.diagnose.traced import trial_at
from autotune.export.target import Provenance
from autotune.looks.reasons import provisional_text
from autotune.tuning.environment import PACKAGES
from autotune.tuning.history import History
from autotune.tuning.journal import read_study
from autotune.tuning.lines import best_speedup, failure_in_words
from autotune.tuning.study import BURSTS, originals
from policies.trial import ChangeShare, Status, Trial
from trainer.errors import BadInputError, Problem
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.source import source_file


@dataclass(frozen=True, kw_only=True)
class Source:
    """A recipe to export, and its origin. `failed`: why a burst of it failed, None if none did."""

    recipe: Recipe
    provenance: Provenance
    failed: str | None = None
    bursts: Path | None = None  # the folder with the bursts of its study


def input_files(named: str) -> tuple[Path, ...]:
    """Returns the files that the export reads: those of the study, or the recipe."""
    path = Path(named)
    if path.is_dir():
        return originals(path)
    return (source_file(named),) if trial_at(path) is None else originals(path.parent)


def source_at(named: str) -> Source:
    """Returns the recipe of this name.

    Raises BadInputError if nothing ran in the study, it has no such trial, or the file is not a recipe.
    """
    path = Path(named)
    if path.is_dir():
        return _best_of(path)
    if trial := trial_at(path):
        return _of_trial(read_study(path.parent), trial, str(path.parent))
    recipe = load_recipe(named)
    return Source(recipe=recipe, provenance=Provenance(source=recipe.name))


def _best_of(folder: Path) -> Source:
    history = read_study(folder)
    if history.best is None:
        raise BadInputError(
            Problem(where=str(folder), what="no recipe of this study ran", hint="its report says what was tried")
        )
    return _of_trial(history, history.best, str(folder))


def _of_trial(history: History, trial: Trial, study: str) -> Source:
    started = history.study
    environment = started.environment if started else {}
    failure = next((outcome.failure for outcome in trial.outcomes if outcome.failure), None)
    bad = trial.status in (Status.OOM, Status.FAILED)
    speedup, speedup_ci = _speedup(history, trial)
    return Source(
        recipe=trial.recipe,
        provenance=Provenance(
            source=study,
            study=started.name if started else "",
            trial=trial.number,
            speedup=speedup,
            speedup_ci=speedup_ci,
            base_runs=history.reference is None or history.reference.number == 0,
            simulated=history.simulated,
            provisional=provisional_text(trial) if trial.provisional else None,
            date=None if started is None else datetime.fromtimestamp(started.at, tz=UTC).date().isoformat(),
            changes=_changes(history, trial),
            versions={name: environment[name] for name in PACKAGES if name in environment},
        ),
        bursts=Path(study) / BURSTS,
        failed=f"trial {trial.number} did not run: {failure_in_words(failure)}" if bad else None,
    )


def _changes(history: History, trial: Trial) -> tuple[ChangeShare, ...]:
    """Returns the changes of the study's best trial with their shares; () for other trials."""
    is_best = history.best is not None and trial.number == history.best.number
    return history.ended.changes if is_best and history.ended else ()


def _speedup(history: History, trial: Trial) -> tuple[float | None, tuple[float, float] | None]:
    """Returns the speed-up of the study's best trial over its reference and its 95 % interval; None for other trials,
    and for a best trial that is the reference and not the base. The interval is None if nothing was compared."""
    reference = history.reference
    if history.best is None or reference is None or trial.number != history.best.number:
        return None, None
    if reference.number == trial.number:
        return (1.0 if trial.number == 0 else None), None
    gained = best_speedup(history)
    return (gained.value, (gained.low, gained.high)) if gained else (1.0, None)
