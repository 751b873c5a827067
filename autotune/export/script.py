"""Writes the parts that all exported scripts share: the environment, and the command of one rank.

If the recipe names the user's trainer, the command is the user's, with its data and checkpoint flags, followed by the
recipe's arguments (or with them in place of `{args}`). Otherwise it is the framework's own program on mock data.
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
    """The command of one rank.

    `variables`: its environment; `lost`: settings of the recipe that it cannot express, as text; `on_mock_data`: True
    if it trains on mock data.
    """

    argv: tuple[str, ...]
    variables: dict[str, str]
    lost: tuple[str, ...]
    on_mock_data: bool


def rank_command(recipe: Recipe, context: Context) -> Command:
    """Returns the command of a rank with the recipe applied.

    Raises BadInputError for an unknown version of the framework.
    """
    trainer = recipe.trainer
    named = context.version or (trainer.version if trainer else None)
    found = framework_of(recipe).rank_command(recipe, named, context.bursts)
    return Command(argv=found.argv, variables=rank_variables(recipe), lost=found.lost, on_mock_data=trainer is None)


def exports(variables: dict[str, str], expand: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields one line of shell per variable; bash expands the values in `expand`."""
    for name, value in variables.items():
        yield f'export {name}="{value}"' if value in expand else export_line(name, value)


def expanded_words(recipe: Recipe) -> tuple[str, ...]:
    """Returns the words of the user's own command that bash expands."""
    return () if recipe.trainer is None else recipe.trainer.expand


def first_line(recipe: Recipe) -> str:
    """Returns the first line of the script: a login shell if the user's own script starts one."""
    lines = () if recipe.trainer is None else recipe.trainer.setup
    return lines[0] if lines and is_login(lines[0]) else FIRST_LINE


def prepared(recipe: Recipe) -> list[str]:
    """Returns the shell lines that must run before the command."""
    return [] if recipe.trainer is None else [line for line in recipe.trainer.setup if not is_login(line)]


def setup(recipe: Recipe) -> Iterator[str]:
    """Yields the lines with which the user's own script prepares its shell, under a comment."""
    lines = prepared(recipe)
    yield from ("", "# As your own script prepares the shell:", *lines) if lines else ()


def framework_target(framework: Framework) -> Target | None:
    """Returns the target of a framework: its own script, or the user's command if it starts this framework.

    None without a script.
    """
    script = framework.script
    if script is None:
        return None

    def render(recipe: Recipe, context: Context) -> str:
        if recipe.trainer is not None and recipe.trainer.kind == framework.name:
            return own_command(recipe, context)
        return script(recipe, context.version, context.origin)

    return Target(name=framework.name, render=render, framework=lambda recipe: framework)


def own_command(recipe: Recipe, context: Context) -> str:
    """Returns a script that runs the user's own command, with the recipe applied, under torchrun."""
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
