"""Compares the parts of a traced step with those that the estimate expects of the same rank, by cause.

A cause is the reason why parts are long: links of one kind, GEMMs, the host, routing. Parts whose kernels a trace and
an estimate divide differently belong to one cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from trainer.estimate.candidates import Floats


class Cause(StrEnum):
    """A reason for which a part of a step is longer."""

    ROUTER = "router"  # ranks wait for the one with most tokens
    EP = "ep"
    TP = "tp"
    CP = "cp"
    DP = "dp"
    DENSE = "dense_products"
    EXPERTS = "expert_products"
    ATTENTION = "attention"
    MEMORY_BOUND = "memory_bound"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    HOST = "host"
    WAITING = "waiting"  # for other pipeline stages and late ranks
    OTHER = "other"  # copies, other communication, idle time without a cause


LINKS = (Cause.EP, Cause.TP, Cause.CP, Cause.DP)
MOVES = 0.1  # least share of a cause's expected time that a change must remove to be one of its explanations (judged)
EXPERTS_WAIT = "experts_wait"  # part of dispatch and combine: waiting for the rank with most tokens
OTHER = "other"
PARTS: dict[str, Cause] = {
    EXPERTS_WAIT: Cause.ROUTER,
    "ep_exposed": Cause.EP,
    "tp_exposed": Cause.TP,
    "cp_exposed": Cause.CP,
    "dp_exposed": Cause.DP,
    "gemm": Cause.DENSE,
    "grouped": Cause.EXPERTS,
    "attention": Cause.ATTENTION,
    "permute": Cause.MEMORY_BOUND,
    "quantize": Cause.MEMORY_BOUND,
    "memory_bound": Cause.MEMORY_BOUND,
    "recompute": Cause.RECOMPUTE,
    "optimizer": Cause.OPTIMIZER,
    "host": Cause.HOST,
    "gc": Cause.HOST,
    "waiting": Cause.WAITING,
    OTHER: Cause.OTHER,
}


@dataclass(frozen=True, kw_only=True)
class Traced:
    """Seconds of PARTS of an average traced step, and those expected on its rank, [K] by K sets of constants.

    `deviations`: standard deviations of the log of an expected part if every constant is right, `usual_deviation` for
    parts without one. `moved`: by change, the seconds that it removes from each expected part. `reference_excess_s`:
    seconds by which the reference's traced parts exceed its scaled estimate, which are expected here too; empty if the
    reference was not traced.
    """

    seen: Mapping[str, float]
    expected: Mapping[str, Floats]
    deviations: Mapping[str, float]
    usual_deviation: float
    rank: int | None
    moved: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reference_excess_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CauseTime:
    """Seconds of one cause, traced and expected [K].

    `deviation_s`: standard deviation of the expected seconds. `reference_excess_s`: that of the reference over its
    own estimate. `moved_by`: the changes that move the cause, with the seconds that each removes.
    """

    cause: Cause
    seen_s: float
    expected_s: Floats
    deviation_s: float
    reference_excess_s: float
    moved_by: Mapping[str, float]


def by_cause(traced: Traced) -> list[CauseTime]:
    """Returns the causes that take time, in the order of `Cause`."""
    found = []
    for cause in Cause:
        parts = [part for part, of in PARTS.items() if of is cause]
        seen = sum(traced.seen.get(part, 0.0) for part in parts)
        expected = sum((traced.expected[part] for part in parts if part in traced.expected), np.zeros(1))
        off = [
            float(traced.expected[part][0]) * traced.deviations.get(part, traced.usual_deviation)
            for part in parts
            if part in traced.expected
        ]
        if seen > 0 or expected[0] > 0:
            found.append(
                CauseTime(
                    cause=cause,
                    seen_s=seen,
                    expected_s=expected,
                    deviation_s=float(np.linalg.norm(off)),
                    reference_excess_s=sum(traced.reference_excess_s.get(part, 0.0) for part in parts),
                    moved_by=_movers(traced, parts, float(expected[0])),
                )
            )
    return found


def _movers(traced: Traced, parts: Sequence[str], expected_s: float) -> dict[str, float]:
    """Returns the changes that remove at least the fraction MOVES of these parts."""
    taken = {name: sum(moved.get(part, 0.0) for part in parts) for name, moved in traced.moved.items()}
    return {name: s for name, s in taken.items() if s > MOVES * expected_s}
