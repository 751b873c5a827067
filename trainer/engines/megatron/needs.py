"""Finds the settings of a recipe that need Transformer Engine, so that none is dropped silently where it is missing.

Megatron-Core refuses some of them late and ignores others; here all are reported before the model is built.
"""

from __future__ import annotations

from trainer.recipe import Recipe
from trainer.recipe.rules.local import needing, needing_fields


def missing_transformer_engine(recipe: Recipe) -> str | None:
    """Returns the message for a recipe that needs Transformer Engine where it is missing; None if the recipe does not
    need it."""
    needed = [f"{name}: {value}" for name, value in (needing(recipe) | needing_fields(recipe)).items()]
    if not needed:
        return None
    return (
        f"Transformer Engine cannot be used here, and needs it: {', '.join(needed)} (pip install 'moe-autotune[gpu]')"
    )
