"""The recipe's overrides in a command that is the user's own."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.command_line.megatron_bridge.overrides import overrides
from trainer.command_line.megatron_bridge.versions import NEWEST, Version
from trainer.recipe import Recipe

PLACE = "{args}"


def with_recipe(command: Sequence[str], recipe: Recipe, version: Version = NEWEST) -> tuple[str, ...]:
    """The command with the recipe's overrides behind it, or where it says {args}; of a path that both set, the
    recipe's stands."""
    words = tuple(overrides(recipe, version))
    paths = {_path(word) for word in words}
    kept = [word for word in command if word.startswith("-") or "=" not in word or _path(word) not in paths]
    at = kept.index(PLACE) if PLACE in kept else len(kept)
    return (*kept[:at], *words, *kept[at + 1 :])


def _path(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")
