"""Check before an export: the rules that a recipe breaks where the export would run."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.export.target import Target
from trainer.legality import errors_by_rules, findings_of
from trainer.recipe import Recipe
from trainer.recipe.rules import Finding


def broken_for(recipe: Recipe, target: Target, version: str | None) -> list[Finding]:
    """Errors by the rules of the framework that the target writes for, everyone's where it writes for none. What its
    words cannot say is no matter of these: the export itself names it. BadInputError for a version that is none."""
    framework = target.framework(recipe)
    if framework is None or framework.findings is None:
        return errors_by_rules(findings_of(recipe))
    version = version or (recipe.trainer.version if recipe.trainer else None)
    return errors_by_rules(framework.findings(recipe, version))


def said_on_top(broken: list[Finding]) -> Iterator[str]:
    """Yields one line per finding, as a comment in what is exported in spite of them."""
    yield from (f"NOT LEGAL: {finding.message} [{finding.rule}]" for finding in broken)
