"""Measures how well a study predicts which recipes fit: after some of its trials, its surrogate's verdicts on recipes
drawn from the space it ranks are compared with the truth. A recipe is refused if its P(fits) is below what the next
burst needs. None of these recipes counts towards the best known."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.policy.scenarios import Scenario
from benchmarks.policy.study import FitCounts
from policies.candidates.layouts import legal_space
from policies.search.acquisition import min_fit_probability
from policies.trial import Trial
from policies.tuner.tuner import Tuner
from trainer.engines.simulated import true_throughput
from trainer.estimate.candidates import Flags
from trainer.estimate.plan.choices import broken, written_out
from trainer.microbenchmarks.row import Row

AFTER = (1, 3, 10)  # numbers of trials, without the base's, after which verdicts are counted
DRAWN = 60  # recipes that are drawn; those that break a rule are not counted


def fitting_of(scenario: Scenario, trials: Sequence[Trial], probed: Sequence[Row] = ()) -> Iterator[FitCounts]:
    """Yields counts after each number of trials that the study reached, without the base's; `probed` are the rows of
    its probe."""
    found = legal_space(scenario.recipe)
    count = found.finals.candidates.count
    rng = random.Random(f"fitting {scenario.name}")
    drawn = sorted(rng.sample(range(count), min(DRAWN, count)))
    table = found.finals.candidates.take(np.array(drawn, dtype=np.int64))
    recipes = [written_out(table.recipe(row)) for row in range(table.count)]
    legal = np.array([not broken(recipe, found.unavoidable) for recipe in recipes], dtype=bool)
    fits = np.array([true_throughput(recipe, scenario.machine) is not None for recipe in recipes], dtype=bool)
    tuner = Tuner(scenario.recipe, scenario.seed, probed=probed)
    for after in AFTER:
        known = trials[: after + 1]
        if len(known) == after + 1:
            admitted = tuner.surrogate(known).memory.fits(table) >= min_fit_probability(known)
            yield _counted(fits[legal], admitted[legal])


def _counted(fits: Flags, admitted: Flags) -> FitCounts:
    return FitCounts(
        fit=int(fits.sum()),
        refused=int((fits & ~admitted).sum()),
        admitted=int(admitted.sum()),
        died=int((admitted & ~fits).sum()),
    )
