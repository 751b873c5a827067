"""Finds the frameworks by their folders, and the framework of a recipe."""

from __future__ import annotations

from importlib import import_module

from trainer.frameworks.framework import Framework
from trainer.frameworks.reading import Reader
from trainer.recipe import Recipe
from trainer.recipe.framework_names import DEFAULT, framework_names


def framework_named(name: str) -> Framework:
    """Loads the framework of this name from its folder."""
    framework: Framework = import_module(f"trainer.frameworks.{name.replace('-', '_')}.framework").FRAMEWORK
    return framework


def frameworks() -> tuple[Framework, ...]:
    """Returns all frameworks, by name."""
    return tuple(map(framework_named, framework_names()))


def framework_of(recipe: Recipe) -> Framework:
    """Returns the framework of the user's trainer; for a recipe without one, the framework whose own program can train
    the recipe."""
    return framework_named(recipe.trainer.kind if recipe.trainer else DEFAULT)


def readers() -> tuple[tuple[Framework, Reader], ...]:
    """Returns the frameworks that have a reader, in the order in which they are tried."""
    found = ((framework, framework.reader) for framework in frameworks() if framework.reader)
    return tuple(sorted(found, key=lambda pair: pair[1].order))
