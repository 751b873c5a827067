"""The next burst of a bisection and its verdict so far: a pure function of the bursts.

The two ends run first. If A fails, the bisection ends. If B fails, the smallest failing sets are searched for; else the
differences that make it slower. If B is neither slower nor fails, the verdict says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from policies.bisect.failure import failure_step
from policies.bisect.question import BisectStep, Observation, Question, Subset, Verdict
from policies.bisect.slowdown import slowdown_step
from policies.bisect.terms import Terms, terms_of
from policies.surrogate.blas import one_blas_thread


@one_blas_thread()
def next_step(question: Question, seen: Sequence[Observation]) -> BisectStep:
    """Returns the verdict after some bursts and the subset to run next, which is None at the end. Pure."""
    good, bad = question.ends
    for end in (good, bad):
        if not any(each.subset == end for each in seen):
            return BisectStep(verdict=Verdict(), next_subset=end)
    if (symptom := _symptom(seen, good)) is not None:
        return BisectStep(verdict=Verdict(symptom=symptom), next_subset=None)  # A fails: there is no good end
    if (symptom := _symptom(seen, bad)) is not None:
        return failure_step(question, symptom, seen)
    return slowdown_step(question, _terms(question.guilt), seen)


def _symptom(seen: Sequence[Observation], subset: Subset) -> str | None:
    return next((each.symptom for each in seen if each.subset == subset and each.symptom is not None), None)


@lru_cache(maxsize=4)
def _terms(guilt: tuple[float, ...]) -> Terms:
    return terms_of(guilt)
