"""Compares P(fits) before any burst with the outcome: each measured run is given limits around its peak.

A run of one pipeline stage fits a limit if its measured peak is below it. The limits are LIMITS times the peak, evenly
spaced in log, and apply to torch's allocator: GPU memory outside it was not measured. The constants of the memory
estimate are fitted without the run's own test case; standard deviations are the surrogate's priors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from benchmarks.memory_accuracy import Judged
from policies.surrogate.memory import fit_memory, fit_probability, table_memory_prior
from trainer.estimate.candidates import Floats, one
from trainer.estimate.memory.estimate import memory_of

LIMITS: Floats = np.geomspace(0.8, 1.25, 41)
EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Pairs of run and limit with P(fits) from `low` to `high`: their mean P(fits), and the share that fits."""

    low: float
    high: float
    said: float
    happened: float
    questions: int
    cases: int


def said_and_happened(judged: Sequence[Judged]) -> list[Interval]:
    """Returns one row per interval of EDGES that has any pair."""
    known = [each for each in judged if each.run.recipe and each.run.recipe.knob("pipeline_model_parallel_size") == 1]
    said = np.array([_chances(each) for each in known])  # [runs, limits]
    fit = np.broadcast_to(LIMITS >= 1.0, said.shape)
    cases = np.array([each.run.case for each in known])
    found = []
    for low, high in pairwise(EDGES):
        inside = (said >= low) & ((said < high) | (high == 1.0))
        if inside.any():
            found.append(
                Interval(
                    low=low,
                    high=high,
                    said=float(said[inside].mean()),
                    happened=float(fit[inside].mean()),
                    questions=int(inside.sum()),
                    cases=len(set(cases[inside.any(axis=1)])),
                )
            )
    return found


def _chances(each: Judged) -> Floats:
    """Returns P(fits) of one run at every limit, [limits]."""
    assert each.run.recipe is not None
    rows = one(each.run.recipe)
    table = memory_of(rows)
    alone = replace(table_memory_prior(), outside_gib=-float(table.outside_gib[0]))
    need, deviation = fit_memory([], None, alone).needs(rows)
    left_out = each.peak / float(table.peak_gib.max())  # the table's constants know the case, `each.peak` does not
    return fit_probability(need * left_out, deviation, LIMITS * each.measured)
