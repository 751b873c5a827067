"""The command of a rank: the user's own with the recipe's overrides in it."""

from __future__ import annotations

from pathlib import Path

from trainer.frameworks.framework import RankCommand
from trainer.frameworks.megatron_bridge.burst import has_overlap
from trainer.frameworks.megatron_bridge.overrides import unsaid
from trainer.frameworks.megatron_bridge.versions import version_of
from trainer.frameworks.megatron_bridge.words import with_recipe
from trainer.recipe import Recipe
from trainer.values import knob_value


def rank_command(recipe: Recipe, named: str | None, bursts: Path | None) -> RankCommand:
    """The command for a release; `bursts` of the study tell whether the Bridge recipe has a `comm_overlap`.
    BadInputError for a release that is none."""
    version = version_of(named)
    command = () if recipe.trainer is None else recipe.trainer.command
    overlap = bursts is None or has_overlap(bursts)
    lost = (f"{each.what}: {knob_value(each.value)} ({each.why})" for each in unsaid(recipe, version))
    return RankCommand(argv=with_recipe(command, recipe, version, overlap=overlap), lost=tuple(lost))
