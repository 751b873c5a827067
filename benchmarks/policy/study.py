"""Result of a contender on a scenario, burst by burst, and the figures computed from it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Paid:
    """One burst after the base's. `tuned` is the true tokens/s/GPU of what `export` would write after it."""

    gpu_hours: float
    oom: bool
    tuned: float  # 0: there is no recipe yet


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Gains of one trial over its parent, as fractions of throughput: predicted, bound if one was given, and true.

    `low` is the low end of the 90 % interval, whose high end is the bound; `trial` is the number of the trial.
    """

    gain: float
    bound: float | None
    true: float
    low: float | None = None
    trial: int | None = None

    @property
    def error(self) -> float:
        """Returns the log of predicted over true throughput."""
        return math.log1p(self.gain) - math.log1p(self.true)

    @property
    def covered(self) -> bool:
        return self.bound is not None and self.true <= self.bound

    @property
    def inside(self) -> bool:
        """Returns True if the true gain is inside the interval."""
        return self.covered and self.low is not None and self.low <= self.true


@dataclass(frozen=True, kw_only=True)
class FitCounts:
    """Counts of recipes from the space that a study ranks: those that fit, and of them those the surrogate refuses;
    those it admits, and of them those that run out of memory."""

    fit: int
    refused: int
    admitted: int
    died: int


@dataclass(frozen=True, kw_only=True)
class Study:
    """One study of a contender.

    `start` is the throughput of what `export` would write after the base's bursts; `world` is the number of GPUs of a
    burst; `seed` is the study's, `knobs_changed` the number of the base's knobs that `export` would change in the end.
    """

    contender: str
    scenario: str
    world: int
    start: float
    paid: tuple[Paid, ...]
    predicted: tuple[Predicted, ...] = ()
    fitting: tuple[FitCounts, ...] = ()
    ended: str = ""
    cpu_s: float = 0.0
    seed: int = 0
    knobs_changed: int = 0

    def tuned_after(self, bursts: int) -> float:
        """Returns the exported throughput after this many bursts; a study that ended early keeps its last one."""
        counted = self.paid[:bursts]
        return counted[-1].tuned if counted else self.start

    @property
    def ooms(self) -> int:
        return sum(burst.oom for burst in self.paid)

    @property
    def has_recipe(self) -> bool:
        return self.tuned_after(len(self.paid)) > 0

    def bursts_to(self, throughput: float) -> float:
        """Returns the bursts after the base's until the exported recipe reaches this throughput and keeps it; inf:
        never."""
        if self.tuned_after(len(self.paid)) < throughput:
            return math.inf
        curve = [self.start, *(burst.tuned for burst in self.paid)]
        return 1.0 + max((at for at, tuned in enumerate(curve) if tuned < throughput), default=-1)

    def hours_to(self, throughput: float) -> float:
        """Returns the GPU-hours after the base's until the exported recipe reaches this throughput and keeps it; inf:
        never."""
        spent, reached = 0.0, 0.0 if self.start >= throughput else math.inf
        for burst in self.paid:
            spent += burst.gpu_hours
            if burst.tuned < throughput:
                reached = math.inf
            elif reached == math.inf:
                reached = spent
        return reached

    def tuned_at(self, gpu_hours: float) -> float:
        """Returns the exported throughput after this many GPU-hours."""
        spent, tuned = 0.0, self.start
        for burst in self.paid:
            spent += burst.gpu_hours
            if spent > gpu_hours:
                break
            tuned = burst.tuned
        return tuned
