"""Reads the lessons for `--learn-from`: factors that surrogates of earlier studies fitted on GPUs of the same type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.tuning.events import LessonAdded
from autotune.tuning.journal import read_study
from policies.surrogate.prior import lesson_of
from policies.tuner.tuner import Tuner
from trainer.errors import BadInputError, Problem
from trainer.recipe import Recipe


def lessons_for(recipe: Recipe, studies: Sequence[Path]) -> list[LessonAdded]:
    """Returns one lesson per study, in the order given. Raises BadInputError for a study on other GPUs or without a
    run."""
    return [_lesson(recipe, folder) for folder in studies]


def _lesson(recipe: Recipe, folder: Path) -> LessonAdded:
    history = read_study(folder)
    assert history.study is not None  # read_study refuses a journal without its first line
    theirs = Recipe.model_validate(history.study.recipe)
    if theirs.cluster.gpu != recipe.cluster.gpu:
        raise _refused(folder, f"it ran on {theirs.cluster.gpu_name}, this recipe is for {recipe.cluster.gpu_name}")
    tuner = Tuner(theirs, history.study.seed)  # without that study's own lessons: no evidence counts twice
    found = tuner.surrogate(history.trials).time
    if not found.measured:
        raise _refused(folder, "no recipe has run in it")
    lesson = lesson_of(found, study=folder.name)
    return LessonAdded(
        study=lesson.study, trials=lesson.trials, mean=dict(lesson.mean), deviation=dict(lesson.deviation)
    )


def _refused(folder: Path, why: str) -> BadInputError:
    hint = "name studies on GPUs of the same type, or leave --learn-from out"
    return BadInputError(Problem(where=f"--learn-from {folder}", what=why, hint=hint))
