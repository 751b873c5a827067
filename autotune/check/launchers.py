"""`check --for`: what one launcher, in one version, says of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer.command_line.megatron_lm.refusals import findings_for
from trainer.errors import BadInputError, Problem
from trainer.recipe.launchers import NEWEST, check_for
from trainer.recipe.rules.rule import Launcher
from trainer.recipe.source import near

if TYPE_CHECKING:
    from trainer.recipe import Recipe
    from trainer.recipe.rules import Finding

ASKED: dict[str, Callable[[Recipe, str | None], list[Finding]]] = {
    "megatron-lm": findings_for,
    "megatron-bridge": lambda recipe, version: check_for(recipe, Launcher.MEGATRON_BRIDGE, version or NEWEST),
}


def findings_of_launcher(recipe: Recipe, named: str) -> list[Finding]:
    """Findings of `megatron-lm`, `megatron-lm@0.16.1` and the like, errors first. BadInputError for an unknown name."""
    launcher, _, version = named.partition("@")
    if launcher in ASKED:
        return ASKED[launcher](recipe, version or None)
    meant = near(launcher, ASKED)
    hint = f"did you mean {', '.join(meant)}?" if meant else f"there are {', '.join(ASKED)}"
    raise BadInputError(Problem(where=f"--for {named}", what="no launcher of that name", hint=hint))
