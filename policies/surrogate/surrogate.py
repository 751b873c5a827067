"""The surrogate of one cluster: step time and memory of any recipe, each with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.surrogate.blas import one_blas_thread
from policies.surrogate.evidence import evidence_of
from policies.surrogate.memory import MemoryPrior, MemorySurrogate, fit_memory
from policies.surrogate.time import Prior, TimeSurrogate, fit_time
from policies.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """Both posteriors of a study after some trials."""

    time: TimeSurrogate
    memory: MemorySurrogate


MAX_KEPT = 8
_KEPT: list[tuple[tuple[object, ...], Surrogate]] = []  # the last fits and what they were made of, the newest last


@one_blas_thread()
def fit_surrogate(
    trials: Sequence[Trial],
    *,
    limit_gib: float | None,
    prior: Prior | None = None,
    memory_prior: MemoryPrior | None = None,
) -> Surrogate:
    """Fits step time and memory to all trials. Pure.

    `limit_gib` is the memory of a GPU (None: not known), `prior` and `memory_prior` hold what is known before the study
    (None: the tables). The last fits are kept: the report of a study asks for that of its last decision.
    """
    evidence = evidence_of(trials)
    given = (evidence, limit_gib, _figures(prior), _figures(memory_prior))
    for known, found in _KEPT:
        if known == given:
            return found
    found = Surrogate(time=fit_time(evidence, prior), memory=fit_memory(evidence, limit_gib, memory_prior))
    _KEPT[:] = [*_KEPT, (given, found)][-MAX_KEPT:]
    return found


def _figures(prior: Prior | MemoryPrior | None) -> object:
    """Returns the figures of a prior, which can be compared with others' by ==."""
    return None if prior is None else [np.asarray(figure).tolist() for figure in vars(prior).values()]
