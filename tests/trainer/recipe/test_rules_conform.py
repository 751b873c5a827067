"""Checks every registered rule: its examples behave, its hint works."""

import re
from operator import attrgetter
from typing import Any

from hypothesis import given, settings

from tests.rows import for_every_row
from tests.trainer.recipe.drawn import changes
from trainer.estimate.memory.estimate import estimate_memory
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import RULES, Finding, FindingKind, Rule, check, nearest_valid
from trainer.recipe.rules.examples import passing_of, recipe_of
from trainer.recipe.rules.rule import Example

THREAD = re.compile(r"\b(Megatron-LM|Megatron-Bridge|TransformerEngine)#\d+")
every_rule = for_every_row(RULES, name=attrgetter("id"))


def broken_by(example: Example) -> list[Finding]:
    """Returns the findings of all rules, also of those that `check` leaves to a named framework."""
    recipe = recipe_of(example)
    return [finding for rule in RULES if (finding := rule.finding(recipe))]


def test_no_two_rules_share_a_name() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_the_plain_recipe_breaks_no_rule() -> None:
    assert broken_by(Example()) == []


@every_rule
def test_a_rule_names_knobs_that_exist_its_source_and_what_to_do(rule: Rule) -> None:
    assert set(rule.knobs) <= set(KNOBS)
    assert rule.source
    finding = rule.finding(recipe_of(rule.breaking))
    assert finding is not None
    assert finding.hint
    assert "{" not in finding.message or "{" in rule.message


@every_rule
def test_a_rule_with_an_effect_names_its_github_thread(rule: Rule) -> None:
    assert rule.effect is None or THREAD.search(rule.source), rule.source


@every_rule
def test_the_breaking_example_breaks_by_that_rule_alone(rule: Rule) -> None:
    found = broken_by(rule.breaking)
    assert rule.id in [finding.rule for finding in found]
    errors = [finding.rule for finding in found if finding.kind is FindingKind.ERROR]
    assert errors == ([rule.id] if rule.kind is FindingKind.ERROR else [])


@every_rule
def test_the_passing_example_has_no_error_and_not_that_finding(rule: Rule) -> None:
    found = broken_by(passing_of(rule))
    assert [f.rule for f in found if f.kind is FindingKind.ERROR or f.rule == rule.id] == []


@every_rule
def test_following_the_hint_removes_the_finding(rule: Rule) -> None:
    recipe = recipe_of(rule.breaking)
    finding = rule.finding(recipe)
    assert finding is not None
    if finding.suggestion:
        assert rule.finding(recipe.replace(finding.suggestion)) is None


@every_rule
def test_a_legal_recipe_is_found_near_the_breaking_example(rule: Rule) -> None:
    recipe = recipe_of(rule.breaking)
    near = nearest_valid(recipe)
    finding = rule.finding(recipe)
    assert finding is not None
    if rule.kind is FindingKind.ERROR and not finding.suggestion:
        assert near is None
        return
    assert near is not None
    assert not [f for f in check(near) if f.kind is FindingKind.ERROR]
    assert len(recipe.diff(near)) <= 6


@settings(max_examples=40)
@given(changes)
def test_any_recipe_can_be_checked_and_estimated_and_has_a_legal_one_near(made: dict[str, Any]) -> None:
    recipe = recipe_of(Example(knobs=made))
    assert all(finding.message and finding.hint and finding.source for finding in check(recipe))
    assert estimate_memory(recipe).peak_gib > 0
    thawed = recipe.model_copy(update={"tune": recipe.tune.model_copy(update={"freeze": ()})})
    near = nearest_valid(recipe)
    assert near is None or not set(recipe.diff(near)) & set(recipe.tune.freeze)
    near = near or nearest_valid(thawed)  # a frozen batch may be too small for the ranks
    assert near is not None
    assert not [finding for finding in check(near) if finding.kind is FindingKind.ERROR]
