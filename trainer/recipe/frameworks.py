"""Checks a recipe for one framework in one version: by its own rules and Megatron-Core's, no other framework's.

A rule is a warning to everyone where only one framework, or only older releases, refuse the recipe: to that framework,
in such a version, it is an error.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trainer.recipe.rules.check import RULES
from trainer.recipe.rules.rule import Finding, FindingKind, Framework, Rule
from trainer.recipe.schema import Recipe

NEWEST = "head"
NOT_EXPRESSED = "not-expressed"  # id of the finding that no words say it: the job starts without
REFUSED = "refused by Megatron-Core "
_RELEASE = re.compile(r"\d+\.\d+")


def check_for(recipe: Recipe, framework: Framework, version: str = NEWEST) -> list[Finding]:
    """Every rule that binds the framework and holds in the version ("0.16.1", "head"), errors first."""
    bound = (rule for rule in RULES if _binds(rule, framework, version))
    found = [_said_by(rule, finding, framework, version) for rule in bound if (finding := rule.finding(recipe))]
    return sorted(found, key=lambda finding: finding.kind is not FindingKind.ERROR)


def _binds(rule: Rule, framework: Framework, version: str) -> bool:
    """A rule of one framework may tell in `versions` which releases of Megatron-Core refuse what it mends."""
    if rule.versions.startswith(REFUSED):
        return framework in rule.binds or holds_in(rule.versions, version)
    return bool({Framework.CORE, framework} & set(rule.binds)) and holds_in(rule.versions, version)


def holds_in(versions: str, version: str) -> bool:
    """Whether a rule's `versions` ("all", "0.18", "0.16 and 0.17", "0.16 to 0.18", "0.18 and later; …") name a version.
    What stands behind a semicolon is about other releases."""
    said = versions.partition(";")[0]
    releases = [_minor(release) for release in _RELEASE.findall(said)]
    if not releases:
        return True
    minor = 10**6 if version == NEWEST else _minor(version)
    return releases[0] <= minor and (said.endswith("later") or minor <= releases[-1])


def _minor(version: str) -> int:
    major, minor = version.split(".")[:2]
    return int(major) * 1000 + int(minor)


def _said_by(rule: Rule, finding: Finding, framework: Framework, version: str) -> Finding:
    past = rule.kind is FindingKind.WARNING and rule.versions != "all" and not holds_in(rule.versions, NEWEST)
    if rule.versions.startswith(REFUSED):
        refused = holds_in(rule.versions, version) and (framework not in rule.binds or framework in rule.refuses)
    else:
        refused = framework in rule.refuses
    return replace(finding, kind=FindingKind.ERROR) if past or refused else finding
