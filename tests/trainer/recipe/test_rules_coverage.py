"""Every rule of the public collection is a rule of ours, or is said not to be one and why."""

import csv

from tests.places import FACTS
from tests.rows import filled
from trainer.recipe.rules import RULES
from trainer.recipe.tables import read_table

COLLECTION = FACTS / "rules.csv"
ROWS = read_table("rules/coverage.csv")


def test_every_collected_rule_is_accounted_for_once() -> None:
    with COLLECTION.open(encoding="utf-8", newline="") as file:
        collected = [row["id"] for row in csv.DictReader(file)]
    assert [row["collected"] for row in ROWS] == filled(collected)


def test_an_account_names_rules_that_exist_or_says_why_there_is_none() -> None:
    known = {rule.id for rule in RULES}
    for row in filled(ROWS):
        assert set(row["rules"].split()) <= known, row
        assert row["rules"] or row["why_not"], row
