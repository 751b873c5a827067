"""Writes the recipe as `moe-autotune` itself reads it, for `--to yaml`."""

from autotune.export.target import Context, Target
from trainer.recipe import Recipe


def render(recipe: Recipe, context: Context) -> str:
    """Returns the recipe as YAML, under a comment on its origin."""
    return "".join(f"# {line}\n" for line in context.origin) + recipe.to_yaml()


TARGET = Target(name="yaml", render=render)
