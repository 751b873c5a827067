"""Environment variables of a rank: those that a recipe sets, and values that refer to the variable itself.

`/opt/bin:${PATH}` is one: the value inherited by the job is inserted when it starts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

THREADS = "OMP_NUM_THREADS"


def environment(recipe: Recipe) -> dict[str, str]:
    """Returns the environment variables of the recipe that have a value."""
    variables = {name: recipe.knob(name) for name, knob in KNOBS.items() if knob.acts == "environment"}
    variables[THREADS] = recipe.knob("threads_per_rank")
    return {name: str(value) for name, value in variables.items() if value is not None}


def expanded(name: str, value: str, inherited: Mapping[str, str]) -> str:
    """Returns the value with the inherited value inserted; without empty elements, which would mean the working
    folder."""
    if not names_itself(name, value):
        return value
    filled = re.sub(_reference(name), lambda _: inherited.get(name, ""), value)
    return ":".join(part for part in filled.split(":") if part)


def export_line(name: str, value: str) -> str:
    """Returns `export NAME=…` for a shell. A reference to the variable itself stays one, and adds no empty element."""
    if not names_itself(name, value):
        return f"export {name}={shlex.quote(value)}"
    if is_inherited(name, value):
        return f"export {name}"
    before, _, after = re.sub(_reference(name), "\0", value, count=1).partition("\0")
    before, after = before.rstrip(":"), after.lstrip(":")
    own = ":".join(part for part in (before, after) if part)
    if not before:
        return f'export {name}="${{{name}:+${name}:}}"{shlex.quote(own)}'
    tail = f":{shlex.quote(after)}" if after else ""
    return f'export {name}={shlex.quote(before)}"${{{name}:+:${name}}}"{tail}'


def is_inherited(name: str, value: str) -> bool:
    """Returns whether the value is only a reference to the inherited variable, as recipes refer to secrets."""
    return re.fullmatch(_reference(name), value) is not None


def names_itself(name: str, value: str) -> bool:
    return re.search(_reference(name), value) is not None


def _reference(name: str) -> str:
    return rf"\$\{{{re.escape(name)}\}}|\${re.escape(name)}\b"
