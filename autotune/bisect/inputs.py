"""Reads the two recipes of a bisection: recipe files, studies, trials or launch scripts, as the command line names
them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.check.legal import refuse_illegal
from autotune.export.source import source_at
from autotune.importing.found import ImportOptions
from autotune.importing.reading import imported
from policies.bisect.differences import Ends, ends_of
from trainer.errors import BadInputError, Problem, refused
from trainer.recipe import Recipe
from trainer.recipe.source import Source
from trainer.recipe.validation import validated
from trainer.secrets import is_secret

RECIPES = (".yaml", ".yml")
VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Named:
    """Recipe A or B as named on the command line.

    `environment`: variables (NAME=VALUE) and shell lines to run before its ranks start.
    """

    text: str
    environment: tuple[str, ...] = ()

    def recipe(self, gpu: str | None) -> Recipe:
        """Returns the recipe with `environment`.

        Raises BadInputError if it cannot be read, if a variable is a secret, or if its engine cannot run shell lines.
        """
        found = _recipe(self.text, gpu)
        return _in_environment(found, self.environment) if self.environment else found


def ends_named(first: Named, second: Named, *, gpu: str | None) -> Ends:
    """Returns the two recipes with their differences. Raises BadInputError if they do not differ or one is illegal."""
    found, a, b = ends_of(first.recipe(gpu), second.recipe(gpu)), first.text, second.text
    if not found.differences:
        idle = f" but {', '.join(each.name for each in found.idle)}, without effect here" if found.idle else ""
        raise BadInputError(
            Problem(
                where=f"{a} and {b}",
                what=f"they do not differ{idle}",
                hint="name two recipes that differ, or an environment with --env-b",
            )
        )
    for end, named in ((frozenset[int](), a), (frozenset(range(len(found.differences))), b)):
        if not found.legal(end):
            refuse_illegal(found.recipe(end), where=named)
            raise refused(named, "it violates a rule and cannot be run", f"see `moe-autotune check {named}`")
    return found


def _recipe(named: str, gpu: str | None) -> Recipe:
    path = Path(named)
    if path.is_file() and path.suffix not in RECIPES:
        options = ImportOptions(file=named, gpu=gpu, say=lambda line: print(line, file=sys.stderr))
        return imported(options).recipe
    return source_at(named).recipe


def _in_environment(recipe: Recipe, words: Sequence[str]) -> Recipe:
    """Returns the recipe whose ranks start with these variables and shell lines."""
    matches = [VARIABLE.fullmatch(word) for word in words]
    variables = {match[1]: match[2] for match in matches if match}
    lines = [word for word, match in zip(words, matches, strict=True) if not match]
    if secret := next((name for name, value in variables.items() if is_secret(name, value)), None):
        raise refused(secret, "it is a secret, and journals hold none", "set it in the shell that starts bisect")
    data = recipe.model_dump()
    if recipe.burst.engine == "command" and recipe.trainer is not None:
        data["trainer"]["env"] |= variables
        data["trainer"]["setup"] = (*recipe.trainer.setup, *lines)
    elif lines:
        engine = recipe.burst.engine
        raise refused(lines[0], f"engine {engine} runs no line of a shell", "name variables, or use engine command")
    else:
        data["burst"]["env"] |= variables
    return validated(Recipe, Source(name=recipe.name, data=data))
