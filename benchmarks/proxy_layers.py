"""Measures how well proxies predict the errors of their targets, by the proxies' number of layers.

    python -m benchmarks.proxy_layers [--scenarios 9] [--recipes 10]

For recipes drawn from the finalists of `plan` on simulated clusters of 256 GPUs or more, the error of the closed form
(log of the true step over the predicted one) is compared with that of their proxies on at most 8 nodes. *alone* is the
spread of a target's error among the recipes of a scenario, *left* the spread of it less its proxy's error: what a burst
of the proxy leaves open.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

import numpy as np

from benchmarks.policy.scenarios import Scenario, scenarios
from benchmarks.policy.wide import wide_scenarios
from trainer.engines.simulated import simulated_step_s
from trainer.estimate.candidates import tabulate
from trainer.estimate.plan.choices import broken, written_out
from trainer.estimate.plan.search import search
from trainer.estimate.time.estimate import stages_of
from trainer.fidelity import fidelities_of
from trainer.recipe import Recipe

GPUS, MAX_NODES = 256, 8
BOUNDS = (1, 4, 8, 12, 24)  # least number of layers of each group of proxies
MIN_RECIPES = 3  # a scenario counts for a group of proxies if at least this many of its recipes have one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=9, help="half of them wide ones for development")
    parser.add_argument("--recipes", type=int, default=10, help="of each that have a proxy")
    asked = parser.parse_args()
    wide = [each for each in wide_scenarios() if _is_large(each)][: asked.scenarios // 2]
    chosen = [each for each in scenarios() if _is_large(each)][: asked.scenarios - len(wide)] + wide
    alone, left = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    for scenario in chosen:
        found = defaultdict[int, list[tuple[float, float]]](list)
        for recipe in islice(_with_proxies(scenario), asked.recipes):
            target = _error(recipe, scenario)
            for layers, proxy in _proxies(recipe).items():
                group = max(bound for bound in BOUNDS if bound <= layers)
                found[group].append((target, target - _error(proxy, scenario)))
        for group, errors in found.items():
            if len(errors) >= MIN_RECIPES:
                centered = np.array(errors) - np.mean(errors, axis=0)
                alone[group] += centered[:, 0].tolist()
                left[group] += centered[:, 1].tolist()
        print(scenario.name, flush=True)
    for group in sorted(left):
        print(f"from {group:>2} layers: alone {np.std(alone[group]):.3f}, left {np.std(left[group]):.3f}", end="")
        print(f" ({len(left[group])} proxies)")


def _is_large(scenario: Scenario) -> bool:
    return scenario.recipe.world_size >= GPUS and not scenario.unseen


def _with_proxies(scenario: Scenario) -> Iterator[Recipe]:
    """Yields recipes that fit and have a proxy, in a random order."""
    found, rng = search(scenario.recipe), random.Random(scenario.name)
    rows = np.flatnonzero(found.finals.fits).tolist()
    for row in rng.sample(rows, len(rows)):
        recipe = written_out(found.finals.candidates.recipe(row))
        if not broken(recipe, found.unavoidable) and _proxies(recipe):
            yield recipe


def _proxies(recipe: Recipe) -> dict[int, Recipe]:
    """Returns the smallest proxy of every number of layers."""
    found: dict[int, Recipe] = {}
    for _, proxy in fidelities_of(recipe, most_nodes=MAX_NODES):
        found.setdefault(proxy.architecture.num_layers, proxy)
    return found


def _error(recipe: Recipe, scenario: Scenario) -> float:
    return math.log(simulated_step_s(recipe, scenario.machine) / float(stages_of(tabulate([recipe])).step[0]))


if __name__ == "__main__":
    main()
