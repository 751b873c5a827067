"""Reads the lessons for `--learn-from`: factors that studies or probes learned on GPUs of the same type, from a study
folder or a machine file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.tuning.events import LessonAdded
from autotune.tuning.history import History
from autotune.tuning.journal import read_study
from policies.surrogate.learned import lesson_of_file
from policies.surrogate.lesson import Lesson
from policies.surrogate.prior import lesson_of
from policies.surrogate.surrogate import Surrogate
from policies.tuner.tuner import Tuner
from trainer.errors import BadInputError, Problem
from trainer.recipe import Recipe
from trainer.recipe.load_machine import load_machine_file


@dataclass(frozen=True, kw_only=True)
class LearnedStudy:
    """A study with the surrogate of its own probe and bursts.

    Lessons from other studies are left out, so that no evidence counts twice.
    """

    recipe: Recipe
    history: History
    surrogate: Surrogate


def lessons_for(recipe: Recipe, sources: Sequence[Path]) -> list[LessonAdded]:
    """Returns one lesson per study or machine file, in the order given.

    Raises BadInputError for one of another GPU, or without measurements.
    """
    return [_of_file(recipe, source) if source.is_file() else _of_study(recipe, source) for source in sources]


def learned_study(folder: Path) -> LearnedStudy:
    """Returns a study with the surrogate of its own probe and bursts."""
    history = read_study(folder)
    assert history.study is not None  # read_study refuses a journal without its first line
    recipe = Recipe.model_validate(history.study.recipe)
    tuner = Tuner(recipe, history.study.seed, probed=history.rows)
    return LearnedStudy(recipe=recipe, history=history, surrogate=tuner.surrogate(history.trials))


def _of_study(recipe: Recipe, folder: Path) -> LessonAdded:
    study = learned_study(folder)
    theirs, found = study.recipe, study.surrogate.time
    if theirs.cluster.gpu != recipe.cluster.gpu:
        raise _refused(folder, f"it ran on {theirs.cluster.gpu_name}, this recipe is for {recipe.cluster.gpu_name}")
    if not found.measured:
        raise _refused(folder, "no recipe has run in it")
    return _event(lesson_of(found, study=folder.name))


def _of_file(recipe: Recipe, path: Path) -> LessonAdded:
    estimate = load_machine_file(str(path), where="--learn-from").estimate
    if estimate is None:
        raise _refused(path, "it has no section `estimate`: nothing was learned for it")
    if estimate.gpu != recipe.cluster.gpu_name:
        raise _refused(path, f"it was learned on {estimate.gpu}, this recipe is for {recipe.cluster.gpu_name}")
    return _event(lesson_of_file(estimate))


def _event(lesson: Lesson) -> LessonAdded:
    return LessonAdded(
        study=lesson.study, trials=lesson.trials, mean=dict(lesson.mean), deviation=dict(lesson.deviation)
    )


def _refused(source: Path, why: str) -> BadInputError:
    hint = "name studies, or machine files of studies, on GPUs of the same type, or leave --learn-from out"
    return BadInputError(Problem(where=f"--learn-from {source}", what=why, hint=hint))
