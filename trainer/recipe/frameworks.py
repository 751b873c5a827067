"""Checks a recipe for one framework in one version: by its own rules and Megatron-Core's, not those of other
frameworks.

A rule that only one framework, or only older releases, break on is a warning in general, and an error for that
framework in such a version. It stays a warning if the failure is only possible, or slight.
"""

from __future__ import annotations

from dataclasses import replace

from trainer.recipe.rules.check import RULES
from trainer.recipe.rules.releases import NEWEST, is_among
from trainer.recipe.rules.rule import CERTAIN, Finding, FindingKind, FrameworkName, Rule
from trainer.recipe.schema import Recipe

NOT_EXPRESSED = "not-expressed"  # id of the finding that a setting cannot be expressed: the job would start without it


def check_for(recipe: Recipe, framework: FrameworkName, version: str = NEWEST) -> list[Finding]:
    """Returns the findings of every rule that applies to the framework in this version ("0.16.1", "head"), errors
    first."""
    bound = (rule for rule in RULES if _binds(rule, framework, version))
    found = [_judged_for(rule, finding, framework, version) for rule in bound if (finding := rule.finding(recipe))]
    return sorted(found, key=lambda finding: finding.kind is not FindingKind.ERROR)


def _binds(rule: Rule, framework: FrameworkName, version: str) -> bool:
    """Returns True if the rule applies to this framework, or to the Megatron-Core under it, in this version."""
    if rule.core_refuses is not None:
        return framework in rule.binds or is_among(rule.core_refuses, version)
    return bool({FrameworkName.CORE, framework} & set(rule.binds)) and is_among(rule.versions, version)


def _judged_for(rule: Rule, finding: Finding, framework: FrameworkName, version: str) -> Finding:
    """Returns the finding; as an error if this framework, in this version, refuses the recipe or trains it wrongly."""
    past = rule.kind is FindingKind.WARNING and not is_among(rule.versions, NEWEST) and rule.effect in CERTAIN
    refused = framework in rule.refuses
    if rule.core_refuses is not None:
        refused = is_among(rule.core_refuses, version) and (framework not in rule.binds or refused)
    return replace(finding, kind=FindingKind.ERROR) if past or refused else finding
