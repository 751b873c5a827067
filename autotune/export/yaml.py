"""Target `yaml`: the recipe as `moe-autotune` itself reads it."""

from autotune.export.target import Target

TARGET = Target(name="yaml", render=lambda recipe: recipe.to_yaml())
