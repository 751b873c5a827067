"""Checks whether a recipe is legal: by the general rules, or by those of the user's own trainer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from trainer.frameworks import framework_of
from trainer.recipe import Recipe
from trainer.recipe.frameworks import NOT_EXPRESSED
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import RULES, Finding, FindingKind, check, check_moved
from trainer.recipe.rules.repair import Repair

Find = Callable[[Recipe], list[Finding]]
_RULES = {rule.id: rule for rule in RULES}


def findings_of(recipe: Recipe) -> list[Finding]:
    """Returns every finding, errors first.

    A knob that cannot be passed to the trainer is an error: training would run without it.
    """
    found = _of_framework(recipe)
    return check(recipe) if found is None else found


def findings_of_moved(before: Recipe, recipe: Recipe, moved: Collection[str]) -> list[Finding]:
    """Returns the findings of `recipe`, which differs from `before` in the knobs `moved`."""
    found = _of_framework(recipe)
    return check_moved(before, recipe, moved) if found is None else found


def _of_framework(recipe: Recipe) -> list[Finding] | None:
    """Returns the findings by the user's own trainer; None where the general rules alone hold."""
    trainer = recipe.trainer if recipe.burst.engine == "command" else None
    framework = framework_of(recipe) if trainer else None
    if trainer is None or framework is None or framework.findings is None:
        return None
    found = [_refused(finding) for finding in framework.findings(recipe, trainer.version)]
    found += framework.command_findings(trainer.command, recipe)
    return sorted(found, key=lambda finding: finding.kind is not FindingKind.ERROR)


def errors_by_rules(findings: list[Finding]) -> list[Finding]:
    """Returns the errors that rules found; without those for knobs that the framework has no argument for."""
    return [finding for finding in findings if finding.kind is FindingKind.ERROR and finding.rule in _RULES]


def nearest_legal(recipe: Recipe, find: Find = findings_of) -> Recipe | None:
    """Returns the recipe without errors that needs the fewest and smallest changes of knobs, none of them frozen; None
    if a bounded search finds none. `find` gives the findings of a recipe."""
    changes = Repair(errors=lambda moved: errors_by_rules(find(moved)), rules=_RULES).changes(recipe)
    if changes is None:
        return None
    near = recipe.replace(changes)
    return None if any(finding.kind is FindingKind.ERROR for finding in find(near)) else near


def _refused(finding: Finding) -> Finding:
    unsaid = finding.rule == NOT_EXPRESSED and all(name in KNOBS for name in finding.knobs)
    return replace(finding, kind=FindingKind.ERROR) if unsaid else finding


def broken_rules(recipe: Recipe) -> set[str]:
    """Returns the ids of the rules that make the recipe illegal."""
    return {finding.rule for finding in findings_of(recipe) if finding.kind is FindingKind.ERROR}
