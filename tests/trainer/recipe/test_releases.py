"""Releases that a rule holds for: which versions are among them, and their words."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from tests.rows import filled
from trainer.recipe.rules import RULES
from trainer.recipe.rules.releases import is_among, releases_text


@pytest.mark.parametrize(
    ("releases", "inside", "outside", "text"),
    [
        ("", ("0.14", "0.16.1", "head"), (), "all"),
        (">=0.16,<0.18", ("0.16.1", "0.17"), ("0.18", "0.18.0rc0", "head"), "0.16 and 0.17"),
        (">=0.16,<0.19", ("0.17", "0.18.2"), ("0.19", "0.15"), "0.16 to 0.18"),
        (">=0.18.2", ("0.18.2", "0.19", "head"), ("0.18", "0.18.0"), "0.18.2 and later"),
        (">=0.18", ("0.18", "0.18.0rc0", "0.18.0+local", "1.0", "head"), ("0.17", "0.17.9"), "0.18 and later"),
        (">=0.18,<0.19", ("0.18", "0.18.2"), ("0.17", "0.19", "head"), "0.18"),
    ],
)
def test_releases_hold_their_versions_and_have_words(
    releases: str, inside: tuple[str, ...], outside: tuple[str, ...], text: str
) -> None:
    found = SpecifierSet(releases)
    assert all(is_among(found, version) for version in inside)
    assert not any(is_among(found, version) for version in outside)
    assert releases_text(found) == text


def test_rules_name_releases_by_the_bounds_that_have_words() -> None:
    for rule in filled(RULES):
        for releases in (rule.versions, rule.core_refuses or SpecifierSet()):
            assert {each.operator for each in releases} in (set(), {">="}, {">=", "<"}), rule.id
            parts = {each.operator: each.version.count(".") + 1 for each in releases}
            assert parts.get(">=", 2) in (2, 3), rule.id
            assert parts.get("<", 2) == 2, rule.id


def test_a_rule_shows_its_releases_its_note_and_what_megatron_core_refuses() -> None:
    texts = {rule.id: rule.releases_text for rule in RULES}
    assert texts["nccl-ub-expandable"] == "0.16 and 0.17; later ones with torch before 2.11"
    assert texts["format-suits-gpu"] == "all; a check of Transformer Engine, not of Megatron-Core"
    assert texts["shared-overlap-flex"] == "refused by Megatron-Core 0.16 and 0.17"
