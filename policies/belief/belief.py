"""What is believed of any recipe: how long its step takes, how surely, and how likely it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from threadpoolctl import ThreadpoolController

from policies.belief.evidence import evidence_of
from policies.belief.memory import MemoryBelief, learnt_memory
from policies.belief.time import Posterior, Prior, learnt
from policies.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Belief:
    time: Posterior
    memory: MemoryBelief


def believed(trials: Sequence[Trial], *, limit_gib: float | None, prior: Prior | None = None) -> Belief:
    """Pure. `limit_gib` is what a GPU has, `prior` what was believed before the study (None: the tables')."""
    evidence = evidence_of(trials)
    with _libraries().limit(limits=1):  # the matrices are small: more threads only wait for each other
        return Belief(time=learnt(evidence, prior), memory=learnt_memory(evidence, limit_gib))


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
