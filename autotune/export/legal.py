"""Checks a recipe before its export by the rules of the framework that will run it."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.export.target import Target
from trainer.legality import errors_by_rules, findings_of
from trainer.recipe import Recipe
from trainer.recipe.rules import Finding


def broken_for(recipe: Recipe, target: Target, version: str | None) -> list[Finding]:
    """Returns the errors by the rules of the target's framework; by the general rules if it has none.

    Settings that the target cannot express are no errors here: the exported text names them. Raises BadInputError for
    an unknown version.
    """
    framework = target.framework(recipe)
    if framework is None or framework.findings is None:
        return errors_by_rules(findings_of(recipe))
    version = version or (recipe.trainer.version if recipe.trainer else None)
    return errors_by_rules(framework.findings(recipe, version))


def warning_lines(broken: list[Finding]) -> Iterator[str]:
    """Yields one line per finding, for the comment at the top of an export made with --force."""
    yield from (f"NOT LEGAL: {finding.message} [{finding.rule}]" for finding in broken)
