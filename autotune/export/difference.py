"""What of a user's own command changes between two recipes: flags, overrides and variables, as they would be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotune.export.script import Command, rank_command
from autotune.export.target import Context
from trainer.command_line.argv import split
from trainer.recipe import Recipe

_OVERRIDE = re.compile(r"(?:~|\++)?([A-Za-z_][\w.]*)(?:=|$)")  # section.key=value of Megatron-Bridge


@dataclass(frozen=True, kw_only=True)
class WordChange:
    """One flag, override or variable; an empty text where it is not written."""

    before: str
    after: str


def word_changes(base: Recipe, tuned: Recipe, *, bursts: Path | None = None) -> list[WordChange]:
    """From the command of one recipe to that of the other; in the words of the user's trainer, else of Megatron-LM's
    newest version. `bursts`: the folder of their study's, by which exports of it are written too."""
    before, after = (_words(recipe, Context(bursts=bursts)) for recipe in (base, tuned))
    keys = dict.fromkeys([*before, *after])
    pairs = ((before.get(key, ""), after.get(key, "")) for key in keys)
    return [WordChange(before=a, after=b) for a, b in pairs if a != b]


def _words(recipe: Recipe, context: Context) -> dict[str, str]:
    """Text by what it sets."""
    command = rank_command(recipe, context)
    bridge = recipe.trainer is not None and recipe.trainer.kind == "megatron-bridge"
    said = _overrides(command.argv) if bridge else _flags(command)
    return said | {name: f"{name}={shlex.quote(value)}" for name, value in command.variables.items()}


def _flags(command: Command) -> dict[str, str]:
    return {words.flag: shlex.join(words.argv) for words in split(command.argv) if words.flag is not None}


def _overrides(argv: Iterable[str]) -> dict[str, str]:
    return {found[1]: shlex.quote(word) for word in argv if (found := _OVERRIDE.match(word)) and "." in found[1]}
