"""`check --for`: what one launcher, in one version, says of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.errors import BadInputError, Problem
from trainer.legality import OF_LAUNCHER
from trainer.recipe.source import near

if TYPE_CHECKING:
    from trainer.recipe import Recipe
    from trainer.recipe.rules import Finding


def findings_of_launcher(recipe: Recipe, named: str) -> list[Finding]:
    """Findings of `megatron-lm`, `megatron-lm@0.16.1` and the like, errors first. BadInputError for an unknown name."""
    launcher, _, version = named.partition("@")
    if launcher in OF_LAUNCHER:
        return OF_LAUNCHER[launcher](recipe, version or None)
    meant = near(launcher, OF_LAUNCHER)
    hint = f"did you mean {', '.join(meant)}?" if meant else f"there are {', '.join(OF_LAUNCHER)}"
    raise BadInputError(Problem(where=f"--for {named}", what="no launcher of that name", hint=hint))
