"""What every script of ours that starts a trainer shares: the environment, and the command that one rank runs.

Where the recipe names the user's trainer, that is their command, data and checkpoint flags with it, the recipe's words
behind it or where it says `{args}`; else Megatron-LM's own script on made-up data, so that it starts as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.export.target import Context
from autotune.looks.quantities import knob_value
from trainer.command_line.argv import split
from trainer.command_line.expanding import shell_words
from trainer.command_line.login import FIRST_LINE, is_login
from trainer.command_line.megatron_bridge import command as bridge_command
from trainer.command_line.megatron_bridge import overrides as bridge
from trainer.command_line.megatron_bridge import versions as bridge_versions
from trainer.command_line.megatron_lm import beside, flags, model, spelling
from trainer.command_line.megatron_lm.words import recipe_words, with_recipe
from trainer.command_line.variables import export_line, variables
from trainer.engines.command.kinds.megatron_bridge import has_overlap
from trainer.recipe import Recipe

# A run that ends by itself: what a recipe does not decide and pretrain_gpt.py wants said
SHORT = ("--train-iters", "50", "--lr", "3e-4", "--min-lr", "3e-5", "--lr-decay-style", "constant", "--eval-iters", "0",
         "--log-interval", "1", "--log-throughput", "--distributed-timeout-minutes", "60")  # fmt: skip
Argv = tuple[str, ...]


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
        version = flags.version_of(context.version)
        lost = _lost(recipe, version)
        words = [*recipe_words(recipe, version), *_beside(recipe, version)]
        made_up = (*beside.mock_data_words(recipe, version), *SHORT)
        program = tuple(shlex.split(model.program(recipe, version)))
        return Command(
            argv=("python", "-u", *program, *words, *made_up), variables=variables(recipe), lost=lost, made_up=True
        )
    named = context.version or recipe.trainer.version
    argv, lost = _PLACED[recipe.trainer.kind](recipe, recipe.trainer.command, named, context.bursts)
    return Command(argv=argv, variables=variables(recipe), lost=lost)


def exports(variables: dict[str, str], expand: tuple[str, ...] = ()) -> Iterator[str]:
    """A line of shell a variable."""
    for name, value in variables.items():
        yield f'export {name}="{value}"' if value in expand else export_line(name, value)


def expanded_words(recipe: Recipe) -> tuple[str, ...]:
    """Words of the user's own command that bash expands."""
    return () if recipe.trainer is None else recipe.trainer.expand


def first_line(recipe: Recipe) -> str:
    """A login shell where the user's own script has one."""
    lines = () if recipe.trainer is None else recipe.trainer.setup
    return lines[0] if lines and is_login(lines[0]) else FIRST_LINE


def prepared(recipe: Recipe) -> list[str]:
    """Lines that the command needs its shell to have run."""
    return [] if recipe.trainer is None else [line for line in recipe.trainer.setup if not is_login(line)]


def setup(recipe: Recipe) -> Iterator[str]:
    """What the user's own script does to its shell before the launch, as written there."""
    lines = prepared(recipe)
    yield from ("", "# As your own script prepares the shell:", *lines) if lines else ()


def own_command(recipe: Recipe, context: Context) -> str:
    """The user's own command with the recipe laid over it, under torchrun: a whole script."""
    command = rank_command(recipe, context)
    lines = [
        first_line(recipe),
        comment(f"{recipe.name}: your own command with the tuned recipe, written by moe-autotune."),
        *(comment(line) for line in context.origin),
        "# Its data, schedule and checkpoints are as you gave them; start it from the folder where you start yours.",
        *(comment(f"NOT EXPRESSED: {each}") for each in command.lost),
        *setup(recipe),
        "",
        *exports(command.variables, expanded_words(recipe)),
        "",
        *array("COMMAND", command.argv, expanded_words(recipe)),
        "",
        f"torchrun {torchrun_words(recipe)} \\",
        '  --no-python "${COMMAND[@]}" "$@"',
    ]
    return "\n".join(lines) + "\n"


def torchrun_words(recipe: Recipe) -> str:
    """Nodes and ranks. On several nodes the shell says which this one is; a single one needs no name that resolves."""
    where = f"--nnodes {recipe.cluster.nodes} --nproc-per-node {recipe.ranks_per_node}"
    if recipe.cluster.nodes == 1:
        return f"{where} --local-addr localhost"
    return f'{where} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'


def array(name: str, words: Iterable[str], expand: tuple[str, ...] = ()) -> Iterator[str]:
    """A bash array, a flag with its values a line. Words of `expand` stand between double quotes."""
    yield f"{name}=("
    yield from (f"  {shell_words(each.argv, expand)}" for each in split(words) if each.argv)
    yield ")"


def comment(text: str) -> str:
    """A comment must not end where the text has a line break."""
    return f"# {' '.join(text.split())}"


def _beside(recipe: Recipe, version: str) -> Iterator[str]:
    yield from (word for each in beside.words_beside(recipe, version) for word in each.words)


def _lost(recipe: Recipe, version: str) -> Argv:
    spelled = [*model.model_spellings(recipe, version), *spelling.knob_spellings(recipe, version)]
    return tuple(f"{each.name} ({each.why_not})" for each in spelled if each.lost)


def _megatron_lm(recipe: Recipe, command: Argv, named: str | None, _: Path | None) -> tuple[Argv, Argv]:
    version = flags.version_of(named)
    return with_recipe(command, recipe, version), _lost(recipe, version)


def _megatron_bridge(recipe: Recipe, command: Argv, named: str | None, bursts: Path | None) -> tuple[Argv, Argv]:
    version = bridge_versions.version_of(named)
    lost = (f"{each.what}: {knob_value(each.value)} ({each.why})" for each in bridge.unsaid(recipe, version))
    overlap = bursts is None or has_overlap(bursts)
    return bridge_command.with_recipe(command, recipe, version, overlap=overlap), tuple(lost)


_PLACED = {"megatron-lm": _megatron_lm, "megatron-bridge": _megatron_bridge, "custom": _megatron_lm}
