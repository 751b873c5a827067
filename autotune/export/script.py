"""Parts that all exported scripts share: the environment, and the command that one rank runs.

Where the recipe names the user's trainer, that is their command with its data and checkpoint flags, and the recipe's
arguments after it or in place of `{args}`; else a framework's own program on made-up data, so that it starts as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.export.target import Context, Target
from trainer.frameworks import Framework, framework_of
from trainer.frameworks.variables import rank_variables
from trainer.launch_scripts.login import FIRST_LINE, is_login
from trainer.launch_scripts.variables import export_line
from trainer.launch_scripts.writing import array, comment, torchrun_words
from trainer.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Command:
    """`argv`: what one rank runs. `lost`: what of the recipe it does not say, as text. `made_up`: on made-up data,
    of which the user's own takes the place. `variables`: to set before."""

    argv: tuple[str, ...]
    variables: dict[str, str]
    lost: tuple[str, ...]
    made_up: bool


def rank_command(recipe: Recipe, context: Context) -> Command:
    """Returns the command of a rank with the recipe in it. BadInputError for a version that is none."""
    trainer = recipe.trainer
    named = context.version or (trainer.version if trainer else None)
    found = framework_of(recipe).rank_command(recipe, named, context.bursts)
    return Command(argv=found.argv, variables=rank_variables(recipe), lost=found.lost, made_up=trainer is None)


def exports(variables: dict[str, str], expand: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields one line of shell per variable."""
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
    """Yields the lines by which the user's own script prepares its shell before the launch, as written there."""
    lines = prepared(recipe)
    yield from ("", "# As your own script prepares the shell:", *lines) if lines else ()


def framework_target(framework: Framework) -> Target | None:
    """Writes a framework's own script, or the user's command where it is of that framework; None without a script."""
    script = framework.script
    if script is None:
        return None

    def render(recipe: Recipe, context: Context) -> str:
        if recipe.trainer is not None and recipe.trainer.kind == framework.name:
            return own_command(recipe, context)
        return script(recipe, context.version, context.origin)

    return Target(name=framework.name, render=render, framework=lambda recipe: framework)


def own_command(recipe: Recipe, context: Context) -> str:
    """Returns the user's own command with the recipe applied, under torchrun: a whole script."""
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
