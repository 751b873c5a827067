"""The surrogate of one cluster: step time and memory of any recipe, each with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from threadpoolctl import ThreadpoolController

from policies.surrogate.evidence import evidence_of
from policies.surrogate.memory import MemorySurrogate, fit_memory
from policies.surrogate.time import Prior, TimeSurrogate, fit_time
from policies.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """Both posteriors of a study after some trials."""

    time: TimeSurrogate
    memory: MemorySurrogate


def fit_surrogate(trials: Sequence[Trial], *, limit_gib: float | None, prior: Prior | None = None) -> Surrogate:
    """Fits step time and memory to all trials. Pure.

    `limit_gib` is the memory of a GPU (None: not known), `prior` holds the factors before the study (None: the
    tables').
    """
    evidence = evidence_of(trials)
    with _libraries().limit(limits=1):  # the matrices are small: more threads only wait for each other
        return Surrogate(time=fit_time(evidence, prior), memory=fit_memory(evidence, limit_gib))


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
