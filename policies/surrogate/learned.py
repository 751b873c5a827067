"""Reads the calibration that a machine file has of a cluster, as a lesson for a study and for `estimate` and `plan`.

Skips names that this version does not know.
"""

from __future__ import annotations

import math

from policies.surrogate.factors import factors, move_constants
from policies.surrogate.lesson import Lesson
from policies.surrogate.memory import GROUPS
from policies.trial import Z_90
from trainer.estimate.learned import LearnedCluster, LearnedMemory, LearnedParts
from trainer.recipe.machine_file import Learned, LearnedFactors

OUTSIDE, LIMIT, UNEVEN = "outside", "limit", "uneven"  # names in addition to GROUPS, which has the last one
NOTHING = Learned(mean=0.0, deviation=0.0)


def lesson_of_file(estimate: LearnedFactors) -> Lesson:
    """Returns the factors in the `estimate` section of a machine file as a lesson."""
    known = {factor.name for factor in factors()}
    learned = {name: figure for name, figure in estimate.factors.items() if name in known}
    return Lesson(
        study=estimate.source,
        trials=estimate.trials,
        mean={name: figure.mean for name, figure in learned.items()},
        deviation={name: figure.deviation for name, figure in learned.items()},
    )


def learned_cluster(estimate: LearnedFactors, *, name: str) -> LearnedCluster:
    """Returns the constants and memory factors that follow from the file's figures."""
    lesson = lesson_of_file(estimate)
    theta = dict(lesson.mean)
    ends = [{**theta, factor: theta[factor] + Z_90 * deviation} for factor, deviation in lesson.deviation.items()]
    return LearnedCluster(
        name=name,
        constants=move_constants(theta),
        ends=tuple(move_constants(end) for end in ends),
        memory=_memory(estimate),
    )


def _memory(estimate: LearnedFactors) -> LearnedMemory:
    figures = estimate.memory
    uneven = figures.get(UNEVEN, NOTHING)
    return LearnedMemory(
        groups=tuple(
            LearnedParts(parts=group.parts, factor=1 + figures[name].mean, half_width=Z_90 * figures[name].deviation)
            for name, group in GROUPS.items()
            if name in figures and group.parts
        ),
        uneven=uneven.mean,
        uneven_half_width=Z_90 * uneven.deviation,
        outside=math.exp(figures.get(OUTSIDE, NOTHING).mean),
        limit=math.exp(figures.get(LIMIT, NOTHING).mean),
    )


def unknown_figures(estimate: LearnedFactors) -> list[str]:
    """Returns the names in the file that this version does not know."""
    known = {factor.name for factor in factors()} | {*GROUPS, OUTSIDE, LIMIT}
    return [name for name in (*estimate.factors, *estimate.memory) if name not in known]
