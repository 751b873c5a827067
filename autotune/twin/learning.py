"""Makes a twin of a study: its factors for the closed forms, and the keys with which a simulation teaches the same.

The recipes that the study measured are played on a simulated machine, beginning with the published one. What the
surrogate learns of them and of the study's own bursts differs, the difference is translated into keys, and they are
played again on that machine, ROUNDS times (indirect inference: the closed form is the auxiliary model).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from autotune.tuning.lessons import Taught, taught_in
from autotune.twin.playing import as_played, is_measured, mean_outside_gib, play, traced_collection_us
from autotune.twin.steps import matched_to_steps
from autotune.twin.translation import HOW, Theta, bounded, machine_of, moved_keys, translation
from policies.surrogate.corrections import Correction, corrections
from policies.surrogate.factors import factors
from policies.surrogate.learned import LIMIT, OUTSIDE
from policies.surrogate.lesson import Lesson
from policies.surrogate.memory import GROUPS, MemorySurrogate
from policies.surrogate.prior import lesson_of
from policies.trial import Z_90, Trial
from trainer.engines.simulated import collected_us
from trainer.errors import BadInputError, Problem
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine
from trainer.recipe.machine_file import Estimate, Learned, MachineFile

ROUNDS = 3
DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of the simulation: its value, the 90 % interval, and the factors that moved it."""

    value: float
    low: float
    high: float
    factors: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A machine file, and what its figures were learned from. `corrections` are of factors that have a unit here."""

    file: MachineFile
    keys: Mapping[str, Key]
    corrections: tuple[Correction, ...]


def twin_of_study(folder: Path, *, name: str) -> Twin:
    """Returns the twin of a study's cluster. Raises BadInputError where no recipe has run in it."""
    taught = taught_in(folder)
    time, memory = taught.surrogate.time, taught.surrogate.memory
    if not time.measured:
        raise BadInputError(
            Problem(
                where=f"twin {folder}",
                what="no recipe has run in this study: nothing was measured of its cluster",
                hint="continue it with --resume, or name a study with at least one burst that ran",
            )
        )
    assert taught.history.study is not None
    lesson = lesson_of(time, study=folder.name)
    keys = _inferred(taught, lesson)
    learned_memory = _memory(memory, nominal_gib=taught.recipe.memory_limit_gib)
    estimate = Estimate(
        source=folder.name,
        trials=lesson.trials,
        gpu=taught.recipe.cluster.gpu_name,
        versions=taught.history.study.environment,
        factors=_figures(lesson.mean, lesson.deviation),
        memory=learned_memory,
    )
    about = f"learned from study {folder.name}: {lesson.trials} recipes on {taught.recipe.world_size} {estimate.gpu}"
    return Twin(
        file=MachineFile(**machine_of(keys, name=name, about=about).model_dump(), estimate=estimate),
        keys=_with_intervals(keys, lesson.deviation),
        corrections=tuple(corrections(time, taught.recipe)),
    )


def twin_of_lesson(
    lesson: Lesson, *, name: str, gpu: str, versions: Mapping[str, str], published: Theta | None = None
) -> Twin:
    """Returns the twin of a lesson without bursts, such as a probe's. Pure. `published`: what the same probe teaches of
    the published machine, None where nothing."""
    keys = _rounded(moved_keys({}, lesson.mean, _only(published or {}, lesson)))
    estimate = Estimate(
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


def _inferred(taught: Taught, lesson: Lesson) -> dict[str, float]:
    """Returns the keys with which the simulation teaches what the study taught."""
    trials = [trial for trial in taught.history.trials if is_measured(trial)]
    measured_outside = mean_outside_gib(trials)
    keys: dict[str, float] = {}
    learned = {name: _share_learned(name, deviation) for name, deviation in lesson.deviation.items()}
    for _ in range(ROUNDS):
        found = play(trials, machine_of(keys))
        keys = moved_keys(keys, lesson.mean, _only(found.surrogate.time.theta, lesson), learned)
        keys |= _memory_keys(keys, taught.surrogate.memory, found.surrogate.memory)
        if measured_outside is not None and found.outside_gib is not None:
            outside = keys.get("memory.outside_gib", 0.0) + measured_outside - found.outside_gib
            keys["memory.outside_gib"] = max(outside, 0.0)
    keys |= _collections(trials)
    return _rounded(matched_to_steps(keys, _log_deviations(keys, lesson.deviation), _steps(taught)))


def _collections(trials: Sequence[Trial]) -> dict[str, float]:
    """Returns the key of garbage collections, by the median of what the traces show; {} where they show none."""
    found = []
    for trial in trials:
        once_us = collected_us(trial.recipe, machine_of({"host.gc_ms": 1.0}))
        if (pause_us := traced_collection_us(trial)) is not None and once_us:
            found.append(pause_us / once_us)
    milliseconds = median(found) if found else 0.0
    return {"host.gc_ms": milliseconds} if milliseconds else {}


def _share_learned(name: str, deviation: float) -> float:
    """Returns the share of a factor's prior variance that the study has taken away."""
    spread = next(factor.spread for factor in factors() if factor.name == name)
    return 1 - (deviation / spread) ** 2


def _steps(taught: Taught) -> list[tuple[Recipe, float]]:
    """Returns the measured recipes, as they are simulated, with their steps in seconds."""
    return [
        (as_played(each.recipe, Machine(), trace_steps=0), each.step_s)
        for each in taught.surrogate.time.measured
        if each.step_s is not None
    ]


def _log_deviations(keys: Mapping[str, float], deviation: Mapping[str, float]) -> dict[str, float]:
    """Returns the standard deviation of the log of every key that factors move."""
    return {
        name: math.log(key.high / key.low) / (2 * Z_90)
        for name, key in _with_intervals(keys, deviation).items()
        if key.factors and key.low > 0
    }


def _memory_keys(keys: Mapping[str, float], ours: MemorySurrogate, played: MemorySurrogate) -> dict[str, float]:
    place = list(GROUPS).index("activations")
    ratio = (1 + ours.mean[place]) / (1 + played.mean[place])
    return {"memory.activations": keys.get("memory.activations", 1.0) * float(ratio)}


def _memory(found: MemorySurrogate, *, nominal_gib: float | None) -> dict[str, Learned]:
    """Returns the factors of memory groups, of what lies outside, and of the limit where ranks ran out below it."""
    deviation = [math.sqrt(each) for each in found.covariance.diagonal()]
    figures = zip((*GROUPS, OUTSIDE), found.mean.tolist(), deviation, strict=True)
    learned = {name: _figure(mean, spread) for name, mean, spread in figures}
    if found.limit_gib and nominal_gib and found.limit_gib < nominal_gib:
        learned[LIMIT] = _figure(math.log(found.limit_gib / nominal_gib), 0.0)
    return learned


def _only(theta: Theta, lesson: Lesson) -> dict[str, float]:
    """Returns the factors that the lesson has too."""
    return {name: at for name, at in theta.items() if name in lesson.mean}


def _figures(mean: Mapping[str, float], deviation: Mapping[str, float]) -> dict[str, Learned]:
    return {name: _figure(at, deviation[name]) for name, at in mean.items()}


def _figure(mean: float, deviation: float) -> Learned:
    return Learned(mean=round(mean, DIGITS), deviation=round(deviation, DIGITS))


def _rounded(keys: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, DIGITS) for key, value in keys.items()}


def _with_intervals(keys: Mapping[str, float], deviation: Mapping[str, float]) -> dict[str, Key]:
    """Returns the keys with the intervals that the deviations of their factors give them."""
    found = {}
    for key, value in keys.items():
        rows = [row for row in translation() if row.key == key and row.factor in deviation]
        ends = [
            sorted(HOW[row.how](value, sign * Z_90 * deviation[row.factor], 0.0, row) for sign in (-1, 1))
            for row in rows
        ]
        low, high = (_together(value, [end[side] for end in ends]) for side in (0, 1))
        factors = tuple(row.factor for row in rows)
        found[key] = Key(value=value, low=bounded(key, low), high=bounded(key, high), factors=factors)
    return found


def _together(value: float, ends: Sequence[float]) -> float:
    """Returns the end of an interval to which independent causes add up: on a log scale, but for values at 0."""
    if value <= 0 or any(end <= 0 for end in ends):
        return value + math.copysign(math.hypot(*(end - value for end in ends)), sum(ends) - len(ends) * value)
    logs = [math.log(end / value) for end in ends]
    return value * math.exp(math.copysign(math.hypot(*logs), sum(logs)))
