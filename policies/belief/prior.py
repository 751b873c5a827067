"""What is believed of the factors before a study's own bursts: the tables, and what other studies have taught.

Another study's cluster is not this one, even where its GPUs are: its lessons count with WIDER more than their spread. A
lesson far outside of what the tables think possible says that they think too little possible: links of 40 Mbit/s are no
compromise between those and the tables'.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.belief.factors import factors
from policies.belief.lesson import Lesson
from policies.belief.time import Posterior, Prior

WIDER = 0.4  # of a factor's spread by the tables, added to what another study left of it


def lesson_of(found: Posterior, *, study: str) -> Lesson:
    """Of factors that no burst has touched nothing is taught."""
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
    """The tables' own, corrected by each lesson in turn, by its precision."""
    mean, spread = np.zeros(len(factors())), np.array([factor.spread for factor in factors()])
    for lesson in lessons:
        for at, factor in enumerate(factors()):
            if factor.name in lesson.mean:
                theirs = np.hypot(lesson.deviation[factor.name], WIDER * factor.spread) ** -2.0
                ours = max(spread[at], abs(lesson.mean[factor.name] - mean[at])) ** -2.0
                mean[at] = (ours * mean[at] + theirs * lesson.mean[factor.name]) / (ours + theirs)
                spread[at] = (ours + theirs) ** -0.5
    return Prior(mean=mean, spread=spread)
