"""Compares the rules with the installed Megatron-Core: thousands of recipes, the same verdict.

A rule is compared where Megatron-Core can say something before a model is built. What it cannot see then, and what
releases judge differently, is in `trainer/recipe/rules/comparison.csv`, each with its reason; a disagreement that no
row explains fails.
"""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from importlib.util import find_spec

import pytest

if find_spec("megatron") is None:
    pytest.skip("without Megatron-Core", allow_module_level=True)

from tests.draws import few
from tests.rows import filled
from tests.trainer.engines.megatron_verdict import Refusal, refusal, transformer_engine_played
from tests.trainer.recipe import tuned_recipes
from tests.trainer.recipe.mutants import mutants
from trainer.recipe.rules import RULES, Finding, FindingKind, check
from trainer.recipe.rules.examples import recipe_of
from trainer.recipe.rules.releases import is_among
from trainer.recipe.schema import Recipe
from trainer.recipe.tables import read_table

pytestmark = pytest.mark.megatron

DRAWS = (range(500), range(500, 8_000))
MAX_RANKS = 64  # most ranks of a tuned recipe that is mutated: grouping fake ranks takes time
ROWS = read_table("rules/comparison.csv")


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


INSTALLED = release(version("megatron-core"))
UNSEEN = {row["rule"] for row in ROWS if row["relation"] == "unseen"}
NOT_YET = {row["rule"] for row in ROWS if row["relation"] == "newer" and release(row["release"]) > INSTALLED}
OLDER = [row for row in ROWS if row["relation"] == "older" and release(row["release"]) > INSTALLED]


def disagreement(findings: list[Finding], said: Refusal | None) -> str | None:
    """Returns what only one side refuses; None when they agree or the table explains it."""
    errors = {finding.rule for finding in findings if finding.kind is FindingKind.ERROR}
    seen = errors - UNSEEN - NOT_YET
    if said is None:
        return f"only ours: {', '.join(sorted(seen))}" if seen else None
    named = {finding.rule for finding in findings}
    explained = any(row["rule"] in named and row["says"] in said.what for row in OLDER)
    return None if seen or explained else f"only Megatron-Core's: {said.place} {said.what}"


def recipes(draws: range) -> list[Recipe]:
    """Returns examples of every rule, and mutants of the plain recipe and of the smaller hand-tuned ones."""
    small = [tuned_recipes.recipe_of_row(row) for row in tuned_recipes.rows() if row["num_gpus"] <= MAX_RANKS]
    examples = 2 * len(RULES)
    made = list(mutants(draws.stop, seed=20261121, also=small))
    drawn = [*made[:examples], *made[examples + draws.start :]]
    return sorted(
        (recipe for recipe in drawn if not recipe.hardware.is_cpu), key=lambda recipe: recipe.world_size
    )  # a group of fake ranks is made once a size


@pytest.mark.parametrize("draws", few(DRAWS, 1), ids=str)
def test_the_rules_and_megatron_core_agree_on_thousands_of_recipes(draws: range) -> None:
    counts: Counter[str] = Counter()
    found: Counter[str] = Counter()
    fired: Counter[str] = Counter()
    with transformer_engine_played():
        for recipe in recipes(draws):
            findings, said = check(recipe), refusal(recipe)
            errors = {finding.rule for finding in findings if finding.kind is FindingKind.ERROR}
            fired.update(errors)
            counts[f"{'illegal' if errors else 'legal'} here, {'refused' if said else 'taken'} there"] += 1
            if problem := disagreement(findings, said):
                found[problem] += 1
    print(f"\nmegatron-core {version('megatron-core')}: {counts.total()} recipes, {dict(counts)}")
    print(f"{len(fired)} error rules fired; {len(UNSEEN)} unseen, {len(NOT_YET)} not yet there, {len(OLDER)} older")
    assert not found
    assert counts["legal here, taken there"] > len(draws) / 5
    assert counts["illegal here, refused there"] > len(draws) / 5
    errors_of_gpus = {rule.id for rule in RULES if rule.kind is FindingKind.ERROR and not rule.id.startswith("cpu-")}
    assert errors_of_gpus <= set(fired)


def test_what_a_rule_says_nothing_stops_this_megatron_core_takes() -> None:
    unstopped = [rule for rule in RULES if rule.effect and is_among(rule.versions, version("megatron-core"))]
    with transformer_engine_played():
        for rule in filled(unstopped):
            assert refusal(recipe_of(rule.breaking)) is None, rule.id


def test_the_table_of_differences_names_rules_that_exist_and_says_why() -> None:
    kinds = {rule.id: rule.kind for rule in RULES}
    for row in filled(ROWS):
        assert row["relation"] in ("unseen", "newer", "older"), row
        assert row["why"], row
        assert (kinds[row["rule"]] is FindingKind.ERROR) == (row["relation"] != "older"), row
        assert bool(row["release"]) == (row["relation"] != "unseen"), row
        assert bool(row["says"]) == (row["relation"] == "older"), row
