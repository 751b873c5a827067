"""Makes a twin from a study, or from a lesson such as a probe's: factors for the estimate's closed forms, keys
(parameters) for the simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.tuning.lessons import learned_study
from autotune.twin.inferred import inferred_keys
from autotune.twin.probed import DIGITS
from autotune.twin.translation import Theta, intervals, machine_of, moved_keys, translation
from policies.surrogate.corrections import Correction, corrections
from policies.surrogate.learned import LIMIT, OUTSIDE
from policies.surrogate.lesson import Lesson
from policies.surrogate.memory import GROUPS, MemorySurrogate
from policies.surrogate.prior import lesson_of
from policies.trial import Z_90
from trainer.errors import BadInputError, Problem
from trainer.recipe.machine import Machine
from trainer.recipe.machine_file import Learned, LearnedFactors, MachineFile

LESSON_ROUNDS = 6  # rounds in which the factors of a lesson become keys, a share of each factor per round


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of the simulation: its value, its 90 % interval, and the factors that moved it."""

    value: float
    low: float
    high: float
    factors: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A machine file, and what its figures were learned from.

    `corrections`: the factors that have a unit on this cluster.
    """

    file: MachineFile
    keys: Mapping[str, Key]
    corrections: tuple[Correction, ...]


def twin_of_study(folder: Path, *, name: str) -> Twin:
    """Returns the twin of a study's cluster. Raises BadInputError if no recipe has run in it."""
    study = learned_study(folder)
    time, memory = study.surrogate.time, study.surrogate.memory
    if not time.measured:
        raise BadInputError(
            Problem(
                where=f"twin {folder}",
                what="no recipe has run in this study: nothing was measured of its cluster",
                hint="continue it with --resume, or name a study with at least one burst that ran",
            )
        )
    assert study.history.study is not None
    lesson = lesson_of(time, study=folder.name)
    keys = _rounded(inferred_keys(study, lesson))
    learned_memory = _memory(memory, nominal_gib=study.recipe.memory_limit_gib)
    estimate = LearnedFactors(
        source=folder.name,
        trials=lesson.trials,
        gpu=study.recipe.cluster.gpu_name,
        versions=study.history.study.environment,
        factors=_figures(lesson.mean, lesson.deviation),
        memory=learned_memory,
    )
    about = f"learned from study {folder.name}: {lesson.trials} recipes on {study.recipe.world_size} {estimate.gpu}"
    return Twin(
        file=MachineFile(**machine_of(keys, name=name, about=about).model_dump(), estimate=estimate),
        keys=_with_intervals(keys, lesson.deviation),
        corrections=tuple(corrections(time, study.recipe)),
    )


def twin_of_lesson(
    lesson: Lesson,
    *,
    name: str,
    gpu: str,
    versions: Mapping[str, str],
    published: Theta | None = None,
    simulated: Callable[[Machine], Theta] | None = None,
) -> Twin:
    """Returns the twin of a lesson without bursts, such as a probe's. `simulated` returns the factors that the same
    probe gives on a simulated machine; without it, `published` has those of the published machine.

    `simulated` is called LESSON_ROUNDS times; each round moves a key by a share of each of its factors, so that several
    factors of one key do not overshoot.
    """
    keys: dict[str, float] = {}
    shares = None if simulated is None else {name: 1 / _translations(name, lesson) for name in lesson.mean}
    for _ in range(1 if simulated is None else LESSON_ROUNDS):
        theta = (published or {}) if simulated is None else simulated(machine_of(keys))
        theirs = {factor: at for factor, at in theta.items() if factor in lesson.mean}
        keys = moved_keys(keys, lesson.mean, theirs, shares)
    keys = _rounded(keys)
    estimate = LearnedFactors(
        source=lesson.study,
        trials=lesson.trials,
        gpu=gpu,
        versions=dict(versions),
        factors=_figures(lesson.mean, lesson.deviation),
    )
    machine = machine_of(keys, name=name, about=f"learned from {lesson.study} on {gpu}")
    return Twin(
        file=MachineFile(**machine.model_dump(), estimate=estimate),
        keys=_with_intervals(keys, lesson.deviation),
        corrections=(),
    )


def _translations(name: str, lesson: Lesson) -> int:
    """Returns the largest number of the lesson's factors that move one key together with this factor."""
    keys = {row.key for row in translation() if row.factor == name}
    counts = [sum(row.key == key and row.factor in lesson.mean for row in translation()) for key in keys]
    return max(counts, default=1)


def _memory(found: MemorySurrogate, *, nominal_gib: float | None) -> dict[str, Learned]:
    """Returns the factors of the memory groups and of memory outside the allocator, and that of the limit if ranks ran
    out below it."""
    deviation = [math.sqrt(each) for each in found.covariance.diagonal()]
    figures = zip((*GROUPS, OUTSIDE), found.mean.tolist(), deviation, strict=True)
    learned = {name: _figure(mean, spread) for name, mean, spread in figures}
    if found.limit_gib and nominal_gib and found.limit_gib < nominal_gib:
        learned[LIMIT] = _figure(math.log(found.limit_gib / nominal_gib), 0.0)
    return learned


def _figures(mean: Mapping[str, float], deviation: Mapping[str, float]) -> dict[str, Learned]:
    return {name: _figure(at, deviation[name]) for name, at in mean.items()}


def _figure(mean: float, deviation: float) -> Learned:
    return Learned(mean=round(mean, DIGITS), deviation=round(deviation, DIGITS))


def _rounded(keys: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, DIGITS) for key, value in keys.items()}


def _with_intervals(keys: Mapping[str, float], deviation: Mapping[str, float]) -> dict[str, Key]:
    """Returns the keys with intervals from the deviations of their factors."""
    ends = intervals(keys, deviation, width=Z_90)
    moving = {key: tuple(r.factor for r in translation() if r.key == key and r.factor in deviation) for key in keys}
    return {
        key: Key(value=value, low=ends[key][0], high=ends[key][1], factors=moving[key]) for key, value in keys.items()
    }
