"""Measures `check`: the time of one check, of a thousand, and of finding the nearest legal recipe.

    python -m benchmarks.check_speed [--facts DIR]

The recipes are NVIDIA's hand-tuned ones (`data/tuned_recipes.json`) and, legal and not, the examples of every rule;
reading files and imports are not counted. CPU time of one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.places import DATA, data_file
from tests.trainer.recipe.tuned_recipes import recipe_of_row
from trainer.recipe import Recipe
from trainer.recipe.rules import RULES, FindingKind, check, nearest_valid
from trainer.recipe.rules.examples import passing_of, recipe_of

ROUNDS = 5


def tuned(facts: Path) -> list[Recipe]:
    return [recipe_of_row(row) for row in json.loads(data_file("tuned_recipes.json", folder=facts).read_text())]


def examples() -> list[Recipe]:
    return [recipe_of(example) for rule in RULES for example in (rule.breaking, passing_of(rule))]


def mean_ms(function: Callable[[Recipe], object], recipes: Sequence[Recipe]) -> float:
    """Returns milliseconds per call: the median over rounds of the mean over all recipes."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for recipe in recipes:
            function(recipe)
        rounds.append((time.process_time() - start) / len(recipes) * 1e3)
    return statistics.median(rounds)


def slowest_ms(function: Callable[[Recipe], object], recipes: Sequence[Recipe]) -> float:
    return max(mean_ms(function, [recipe]) for recipe in recipes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=Path, default=DATA, help="the folder of the tables; default benchmarks/data")
    arguments = parser.parse_args()
    sets = {"hand-tuned recipes": tuned(arguments.facts), "examples of rules": examples()}
    mixed = [recipe for recipes in sets.values() for recipe in recipes]
    for name, recipes in {**sets, "all of them": mixed}.items():
        if recipes:
            each = mean_ms(check, recipes)
            print(f"{name}: {len(recipes)} recipes, {each:.3f} ms a check, {each:.2f} s for 1,000")
    illegal = [recipe for recipe in mixed if any(finding.kind is FindingKind.ERROR for finding in check(recipe))]
    print(
        f"nearest legal recipe: {len(illegal)} illegal ones, {mean_ms(nearest_valid, illegal):.2f} ms each, "
        f"the slowest {slowest_ms(nearest_valid, illegal):.0f} ms"
    )


if __name__ == "__main__":
    main()
