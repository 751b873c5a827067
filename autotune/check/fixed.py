"""Writes the nearest legal recipe as text, for `check --fix`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.check.edited import edited
from trainer.errors import BadInputError
from trainer.recipe import Recipe
from trainer.recipe.files import text_of
from trainer.recipe.load import recipe_from
from trainer.recipe.source import parse_source, source_file
from trainer.values import knob_value

REWRITTEN = "rewritten, without its comments: with only these lines changed it would not be read as the same recipe"


def fixed_text(given: str, nearest: Recipe, changes: Mapping[str, tuple[Any, Any]], *, file: Path | None) -> str:
    """Returns the text of the recipe `given` with only the changed knobs replaced, and a comment on them; `nearest`
    written anew if that text would not be read as `nearest`. `file`: where it will be written, None for stdout."""
    lines = [f"{name}: {knob_value(there)}, not {knob_value(here)}" for name, (here, there) in changes.items()]
    head = f"The nearest legal recipe to {' '.join(given.split())}" if lines else f"{given}: nothing had to change"
    written = text_of(source_file(given), where=given, instead="name a recipe")
    text = edited(written, {name: there for name, (_, there) in changes.items()})
    if not _gives(text, nearest, name=given if file is None else str(file)):
        text, lines = nearest.to_yaml(), [*lines, REWRITTEN]
    return "".join(f"# {line}\n" for line in (head, *lines)) + text


def _gives(text: str, recipe: Recipe, *, name: str) -> bool:
    """Returns whether this text, read from a file of that name, gives the recipe: paths in it are relative to that
    file."""
    try:
        read = recipe_from(parse_source(text, name=name))
    except BadInputError:
        return False
    return read.model_copy(update={"name": recipe.name}) == recipe
