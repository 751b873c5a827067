"""From a file, a packaged example or plain data to a `Recipe`."""

from __future__ import annotations

from trainer.recipe.schema import Recipe
from trainer.recipe.source import Source, packaged_examples, read_source
from trainer.recipe.validation import validated

__all__ = ["load_recipe", "packaged_examples", "recipe_from"]


def load_recipe(path_or_example: str) -> Recipe:
    """A recipe from a YAML file or a packaged example's name. BadInputError carries every problem found."""
    return recipe_from(read_source(path_or_example))


def recipe_from(source: Source) -> Recipe:
    """The recipe that plain data stands for. BadInputError carries every problem found."""
    return validated(Recipe, source)
