"""What every script of ours that starts a trainer shares: the environment, and the command that one rank runs.

Where the recipe names the user's trainer, that is their command, data and checkpoint flags with it, the recipe's words
behind it or where it says `{args}`; else Megatron-LM's own script on made-up data, so that it starts as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autotune.export.target import Context
from autotune.looks.quantities import knob_value
from trainer.command_line.argv import split
from trainer.command_line.megatron_bridge import overrides as bridge
from trainer.command_line.megatron_bridge import versions as bridge_versions
from trainer.command_line.megatron_lm import beside, flags, model, spelling
from trainer.recipe import Recipe

# A run that ends by itself: what a recipe does not decide and pretrain_gpt.py wants said
SHORT = ("--train-iters", "50", "--lr", "3e-4", "--min-lr", "3e-5", "--lr-decay-style", "constant", "--eval-iters", "0",
         "--log-interval", "1", "--log-throughput", "--distributed-timeout-minutes", "60")  # fmt: skip
PLACE = "{args}"


@dataclass(frozen=True, kw_only=True)
class Command:
    """`argv`: what one rank runs. `lost`: what of the recipe it does not say, as text. `made_up`: on made-up data,
    of which the user's own takes the place. `variables`: to set before."""

    argv: tuple[str, ...]
    variables: dict[str, str]
    lost: tuple[str, ...] = ()
    made_up: bool = False


def rank_command(recipe: Recipe, context: Context) -> Command:
    """The command of a rank with the recipe in it. BadInputError for a version that is none."""
    if recipe.trainer is None:
        words, lost = _megatron_lm(recipe, context)
        version = flags.version_of(context.version)
        made_up = (*beside.mock_data_words(recipe, version), *SHORT)
        program = tuple(shlex.split(model.program(recipe, version)))
        return Command(
            argv=("python", "-u", *program, *words, *made_up), variables=variables(recipe), lost=lost, made_up=True
        )
    words, lost = _WORDS[recipe.trainer.kind](recipe, context)
    return Command(argv=placed(recipe.trainer.command, words), variables=variables(recipe), lost=lost)


def variables(recipe: Recipe) -> dict[str, str]:
    """The user's variables, the recipe's over them, then those that Megatron-LM demands."""
    own = {} if recipe.trainer is None else recipe.trainer.env
    kind = "megatron-lm" if recipe.trainer is None else recipe.trainer.kind
    demanded = beside.environment_beside(recipe) if kind == "megatron-lm" else {}
    return {**own, **spelling.environment(recipe), **{name: each.words[0] for name, each in demanded.items()}}


def exports(variables: dict[str, str]) -> Iterator[str]:
    """A line of shell a variable."""
    yield from (f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def placed(command: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    """The command with `words` where it says {args}, else behind it. Of a flag that both have, the recipe's stands."""
    if PLACE in command:
        at = command.index(PLACE)
        return (*_without(command[:at], words), *words, *_without(command[at + 1 :], words))
    return (*_without(command, words), *words)


def array(name: str, words: Iterable[str]) -> Iterator[str]:
    """A bash array, a flag with its values a line."""
    yield f"{name}=("
    yield from (f"  {shlex.join(each.argv)}" for each in split(words) if each.argv)
    yield ")"


def comment(text: str) -> str:
    """A comment must not end where the text has a line break."""
    return f"# {' '.join(text.split())}"


def _without(command: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    """Without the flags, or the paths of overrides, that come again in `words`. What stands before the first flag is
    the program, and a word that is no flag of the recipe is the user's."""
    said = {each.flag for each in split(words) if each.flag}
    paths = {_path(word) for word in words if "=" in word and not word.startswith("-")}
    kept = (word for each in split(command) if each.flag is None or each.flag not in said for word in each.argv)
    return tuple(word for word in kept if _path(word) not in paths)


def _path(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _megatron_lm(recipe: Recipe, context: Context) -> tuple[tuple[str, ...], tuple[str, ...]]:
    version = flags.version_of(context.version)
    spelled = [*model.model_spellings(recipe, version), *spelling.knob_spellings(recipe, version)]
    words = [word for each in spelled for word in each.words]
    words += [word for each in beside.words_beside(recipe, version) for word in each.words]
    lost = tuple(f"{each.name} ({each.why_not})" for each in spelled if each.lost)
    return tuple(words), lost


def _megatron_bridge(recipe: Recipe, context: Context) -> tuple[tuple[str, ...], tuple[str, ...]]:
    version = bridge_versions.version_of(context.version)
    lost = (f"{each.what}: {knob_value(each.value)} ({each.why})" for each in bridge.unsaid(recipe, version))
    return tuple(bridge.overrides(recipe, version)), tuple(lost)


_WORDS = {"megatron-lm": _megatron_lm, "megatron-bridge": _megatron_bridge, "custom": _megatron_lm}
