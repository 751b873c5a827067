"""Converts trials into the observations of a bisection or an ablation: per burst the subset of changes, and its log
step time per token or the symptom of a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from autotune.tuning.losses import disagreement
from policies.bisect.question import Observation, Subset
from policies.noise import Cost, medians, wall_clock_cost
from policies.trial import Trial

LOSS = "loss"  # symptom of a burst whose losses disagree with those of the good trial
NO_STEPS = "no step times"
REFUSED = (0,)  # burst numbers of a trial that the rules refused: it has one outcome, a failure


def bursts_seen(
    trials: Sequence[Trial], subset_of: Callable[[Trial], Subset | None], good: Trial, cost: Cost = wall_clock_cost
) -> list[Observation]:
    """Returns one observation per burst of the trials for which `subset_of` returns a subset, in order.

    A trial whose losses disagree with those of `good` has failed.
    """
    found = [
        pair
        for trial in trials
        if (subset := subset_of(trial)) is not None
        for pair in zip(trial.bursts or REFUSED, _seen(trial, subset, good, cost), strict=True)
    ]
    return [seen for _, seen in sorted(found, key=lambda pair: pair[0])]


def _seen(trial: Trial, subset: Subset, good: Trial, cost: Cost) -> Iterator[Observation]:
    off = trial.number != good.number and disagreement(trial, good) is not None
    for outcome in trial.outcomes:
        costs = medians(replace(trial, outcomes=(outcome,)), cost)
        symptom = str(outcome.failure.kind) if outcome.failure else LOSS if off else None
        if symptom is None and not costs:
            symptom = NO_STEPS
        yield Observation(subset=subset, log_cost=costs[0] if symptom is None else None, symptom=symptom)
