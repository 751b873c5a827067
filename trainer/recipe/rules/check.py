"""Runs every rule on a recipe, and walks from an illegal recipe to the nearest legal one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from trainer.recipe import rules
from trainer.recipe.rules.rule import Finding, FindingKind, Rule
from trainer.recipe.schema import Recipe

MOST_STEPS = 24  # suggestions followed before giving up: a recipe so far off needs its author


def _discovered() -> tuple[Rule, ...]:
    """`RULES` of every file of this package, in file order."""
    modules = (import_module(f"{rules.__name__}.{module.name}") for module in iter_modules(rules.__path__))
    return tuple(rule for module in modules for rule in getattr(module, "ROWS", ()))


RULES: tuple[Rule, ...] = _discovered()


def check(recipe: Recipe) -> list[Finding]:
    """Every rule the recipe breaks, errors first."""
    findings = [finding for rule in RULES if (finding := rule.finding(recipe))]
    return sorted(findings, key=lambda finding: finding.kind is not FindingKind.ERROR)


def nearest_valid(recipe: Recipe) -> Recipe | None:
    """A legal recipe near this one: follows the suggestion of the first error until none is left; None when stuck."""
    seen = set()
    for _ in range(MOST_STEPS):
        errors = [finding for finding in check(recipe) if finding.kind is FindingKind.ERROR]
        if not errors:
            return recipe
        state = recipe.to_yaml()
        if state in seen or not errors[0].suggestion:
            return None
        seen.add(state)
        recipe = recipe.replace(errors[0].suggestion)
    return None
