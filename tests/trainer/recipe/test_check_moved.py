"""Findings of a recipe that differs in a few knobs from one that is known are those of checking it whole."""

from __future__ import annotations

import random

from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import FindingKind, check, check_moved
from trainer.recipe.rules.repair import other_values

STEPS = 250


def test_the_findings_of_a_changed_recipe_are_those_of_checking_it_whole() -> None:
    rng = random.Random(0)
    given = {"name": "r", "model": "deepseek-v3", "cluster": {"gpu": "h100", "nodes": 16}}
    recipe = Recipe.model_validate(given)
    kinds = set()
    for _ in range(STEPS):
        names = rng.sample([name for name in KNOBS if other_values(recipe, name)], 2)
        changes = {name: rng.choice(list(other_values(recipe, name))) for name in names}
        changed = recipe.replace(changes)
        found = check_moved(recipe, changed, changes)
        assert found == check(changed)
        kinds |= {finding.kind for finding in found}
        recipe = changed if rng.random() < 0.5 else recipe
    assert set(FindingKind) == kinds
