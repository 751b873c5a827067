"""Recipes: the description of a training job, its knobs, the rules that make it legal, known models and GPUs."""

from trainer.recipe.load import load_recipe, packaged_examples
from trainer.recipe.schema import Recipe

__all__ = ["Recipe", "load_recipe", "packaged_examples"]
