"""Refuses a recipe that breaks a rule, before anything is spent on it: all problems at once, with the way
out."""

from __future__ import annotations

from trainer.errors import BadInputError, Problem
from trainer.recipe import Recipe
from trainer.recipe.rules import FindingKind, check


def refuse_illegal(recipe: Recipe, *, where: str) -> None:
    """Raises BadInputError with every rule the recipe breaks; `where` is the file it came from."""
    broken = [finding for finding in check(recipe) if finding.kind is FindingKind.ERROR]
    if broken:
        raise BadInputError(
            *(
                Problem(
                    where=f"{where}: {', '.join(finding.knobs) or finding.rule}",
                    what=f"{finding.message} [{finding.rule}]",
                    hint=finding.hint or "no single knob cures this: change the model or the cluster",
                )
                for finding in broken
            )
        )
