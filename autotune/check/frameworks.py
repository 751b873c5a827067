"""Checks a recipe for one framework in one version, for `check --for`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.errors import BadInputError, Problem
from trainer.frameworks import frameworks
from trainer.recipe.source import near

if TYPE_CHECKING:
    from trainer.recipe import Recipe
    from trainer.recipe.rules import Finding


def findings_of_framework(recipe: Recipe, named: str) -> list[Finding]:
    """Returns the findings for `megatron-lm`, `megatron-lm@0.16.1` and the like, errors first. Raises BadInputError for
    an unknown name."""
    name, _, version = named.partition("@")
    judges = {framework.name: framework.findings for framework in frameworks() if framework.findings}
    if name in judges:
        return judges[name](recipe, version or None)
    meant = near(name, judges)
    hint = f"did you mean {', '.join(meant)}?" if meant else f"there are {', '.join(judges)}"
    raise BadInputError(Problem(where=f"--for {named}", what="no framework of that name", hint=hint))
