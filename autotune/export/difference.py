"""Lists the difference between two recipes in the words of the user's own command: flags, overrides and variables."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from autotune.export.script import rank_command
from autotune.export.target import Context
from trainer.frameworks import framework_of
from trainer.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class WordChange:
    """One flag, override or variable in both commands; empty in the command that lacks it."""

    before: str
    after: str


def word_changes(base: Recipe, tuned: Recipe, *, bursts: Path | None = None) -> list[WordChange]:
    """Returns the words that differ between the commands of two recipes of one framework.

    `bursts`: the folder with the bursts of their study, as exports take it.
    """
    before, after = (_words(recipe, Context(bursts=bursts)) for recipe in (base, tuned))
    keys = dict.fromkeys([*before, *after])
    pairs = ((before.get(key, ""), after.get(key, "")) for key in keys)
    return [WordChange(before=a, after=b) for a, b in pairs if a != b]


def _words(recipe: Recipe, context: Context) -> dict[str, str]:
    """Returns setting or variable → its words in the recipe's command."""
    command = rank_command(recipe, context)
    variables = {name: f"{name}={shlex.quote(value)}" for name, value in command.variables.items()}
    return framework_of(recipe).words_by_setting(command.argv) | variables
