"""Checks a recipe for one framework in one version, for `check --for`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.errors import BadInputError, Problem
from trainer.legality import OF_FRAMEWORK
from trainer.recipe.source import near

if TYPE_CHECKING:
    from trainer.recipe import Recipe
    from trainer.recipe.rules import Finding


def findings_of_framework(recipe: Recipe, named: str) -> list[Finding]:
    """Returns the findings for `megatron-lm`, `megatron-lm@0.16.1` and the like, errors first. Raises BadInputError for
    an unknown name."""
    framework, _, version = named.partition("@")
    if framework in OF_FRAMEWORK:
        return OF_FRAMEWORK[framework](recipe, version or None)
    meant = near(framework, OF_FRAMEWORK)
    hint = f"did you mean {', '.join(meant)}?" if meant else f"there are {', '.join(OF_FRAMEWORK)}"
    raise BadInputError(Problem(where=f"--for {named}", what="no framework of that name", hint=hint))
