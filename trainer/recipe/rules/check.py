"""Checks a recipe against every rule, and finds the nearest legal recipe."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from trainer.recipe import rules
from trainer.recipe.rules.repair import Repair
from trainer.recipe.rules.rule import Effect, Finding, FindingKind, Rule
from trainer.recipe.schema import Recipe


def _discovered() -> tuple[Rule, ...]:
    """Returns the `RULES` of every file of this package, in order of file names."""
    modules = (import_module(f"{rules.__name__}.{module.name}") for module in iter_modules(rules.__path__))
    return tuple(rule for module in modules for rule in getattr(module, "ROWS", ()))


RULES: tuple[Rule, ...] = _discovered()
# of every recipe whatever will run it; what is slightly off is said where the framework and its release are known
GENERAL: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.effect is not Effect.INACCURATE)
ERRORS: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.kind is FindingKind.ERROR)


def check(recipe: Recipe) -> list[Finding]:
    """Returns a finding for every general rule that the recipe breaks, errors first."""
    findings = [finding for rule in GENERAL if (finding := rule.finding(recipe))]
    return sorted(findings, key=lambda finding: finding.kind is not FindingKind.ERROR)


def nearest_valid(recipe: Recipe) -> Recipe | None:
    """Returns the legal recipe with the fewest and smallest changes of knobs; None if no change of knobs makes it
    legal."""
    changes = Repair(errors=errors_of, rules={rule.id: rule for rule in RULES}).changes(recipe)
    return None if changes is None else recipe.replace(changes)


def errors_of(recipe: Recipe) -> list[Finding]:
    """Returns the findings that make the recipe illegal."""
    return [finding for rule in ERRORS if (finding := rule.finding(recipe))]
