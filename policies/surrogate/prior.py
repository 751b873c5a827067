"""The prior of the factors before a study's own bursts: the tables, combined with the lessons of other studies.

Another study's cluster is not this one, even with the same GPUs: the spread of its lessons is widened by
LESSON_EXTRA_SPREAD. If a lesson is far outside the table's spread, the table's spread is widened to reach it: a link of
40 Mbit/s must not be averaged halfway to the table's value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.constants import constant
from policies.surrogate.factors import factors
from policies.surrogate.lesson import Lesson
from policies.surrogate.time import Prior, TimeSurrogate

LESSON_EXTRA_SPREAD = constant("lesson_extra_spread")


def lesson_of(found: TimeSurrogate, *, study: str) -> Lesson:
    """Returns the lesson of a study or a probe: the factors that are surer than in the table."""
    left = np.sqrt(np.diag(found.covariance))
    touched = [at for at, factor in enumerate(factors()) if left[at] < factor.spread]
    names = [factors()[at].name for at in touched]
    return Lesson(
        study=study,
        trials=len(found.measured),
        mean=dict(zip(names, found.mean[touched].tolist(), strict=True)),
        deviation=dict(zip(names, left[touched].tolist(), strict=True)),
    )


def prior_of(lessons: Sequence[Lesson]) -> Prior:
    """Returns the table's prior combined with each lesson, weighted by precision."""
    mean, spread = np.zeros(len(factors())), np.array([factor.spread for factor in factors()])
    for lesson in lessons:
        for at, factor in enumerate(factors()):
            if factor.name in lesson.mean:
                theirs = np.hypot(lesson.deviation[factor.name], LESSON_EXTRA_SPREAD * factor.spread) ** -2.0
                ours = max(spread[at], abs(lesson.mean[factor.name] - mean[at])) ** -2.0
                mean[at] = (ours * mean[at] + theirs * lesson.mean[factor.name]) / (ours + theirs)
                spread[at] = (ours + theirs) ** -0.5
    return Prior(mean=mean, covariance=np.diag(spread**2))
