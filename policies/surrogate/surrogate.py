"""The surrogate of one cluster: step time and memory of any recipe, each with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    (None: the tables).
    """
    evidence = evidence_of(trials)
    return Surrogate(time=fit_time(evidence, prior), memory=fit_memory(evidence, limit_gib, memory_prior))
