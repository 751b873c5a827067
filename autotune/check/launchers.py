"""`check --for`: what one launcher, in one version, says of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer.command_line.megatron_bridge import refusals as megatron_bridge
from trainer.command_line.megatron_lm import refusals as megatron_lm
from trainer.errors import BadInputError, Problem
from trainer.recipe.source import near

if TYPE_CHECKING:
    from trainer.recipe import Recipe
    from trainer.recipe.rules import Finding

ASKED: dict[str, Callable[[Recipe, str | None], list[Finding]]] = {
    "megatron-lm": megatron_lm.findings_for,
    "megatron-bridge": megatron_bridge.findings_for,
}


def findings_of_launcher(recipe: Recipe, named: str) -> list[Finding]:
    """Findings of `megatron-lm`, `megatron-lm@0.16.1` and the like, errors first. BadInputError for an unknown name."""
    launcher, _, version = named.partition("@")
    if launcher in ASKED:
        return ASKED[launcher](recipe, version or None)
    meant = near(launcher, ASKED)
    hint = f"did you mean {', '.join(meant)}?" if meant else f"there are {', '.join(ASKED)}"
    raise BadInputError(Problem(where=f"--for {named}", what="no launcher of that name", hint=hint))
