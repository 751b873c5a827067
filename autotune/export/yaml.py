"""Target `yaml`: the recipe as `moe-autotune` itself reads it."""

from autotune.export.target import Context, Target
from trainer.recipe import Recipe


def render(recipe: Recipe, context: Context) -> str:
    """Returns the recipe under a comment on where it came from."""
    return "".join(f"# {line}\n" for line in context.origin) + recipe.to_yaml()


TARGET = Target(name="yaml", render=render)
