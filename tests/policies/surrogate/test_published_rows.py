"""The table of probe rows holds the simulation's own ratios, so that a probe's `expected` is what the published cluster
measures."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from benchmarks.policy.scenarios import scenarios
from policies.surrogate.probed import row_errors
from trainer.engines.simulated.probe import simulate_probe
from trainer.estimate.probe import Expected
from trainer.microbenchmarks.groups import rows_of
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine

pytestmark = pytest.mark.thorough


def test_the_table_has_the_ratio_of_measured_to_closed_form_on_the_published_cluster() -> None:
    logs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for base in _published():
        rows = simulate_probe(base, rows_of(base), seed=1).rows
        for row, expected in zip(rows, Expected(rows, base).at(), strict=True):
            if row.measured and expected > 0:
                logs[row.kind][base.cluster.gpu_name].append(float(np.log(row.measured / expected)))
    table = {kind: errors.published for kind, errors in row_errors().items()}
    found = {kind: float(np.mean([np.mean(of_gpu) for of_gpu in logs[kind].values()])) for kind in table}
    assert found == pytest.approx(table, abs=0.05)


def _published() -> list[Recipe]:
    """Returns a recipe of each model on each GPU of the benchmark of the policy, on the published machine."""
    recipes = {tuple(scenario.name.split()[:2]): scenario.recipe for scenario in reversed(scenarios())}
    return [
        recipe.model_copy(update={"burst": recipe.burst.model_copy(update={"machine": Machine()})})
        for recipe in recipes.values()
    ]
