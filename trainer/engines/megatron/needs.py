"""Checks for settings of a recipe that this engine or machine cannot provide: reported, so that nothing is dropped
silently.

Without Transformer Engine Megatron-Core refuses some of these late and ignores the others; here they are refused
together, before the model is built.
"""

from __future__ import annotations

from trainer.recipe import Recipe
from trainer.recipe.rules.local import needing, needing_fields


def missing_transformer_engine(recipe: Recipe) -> str | None:
    """Returns the message to a user whose recipe needs Transformer Engine where there is none; None when nothing
    does."""
    asked = [f"{name}: {value}" for name, value in (needing(recipe) | needing_fields(recipe)).items()]
    if not asked:
        return None
    return f"Transformer Engine cannot be used here, and needs it: {', '.join(asked)} (pip install 'moe-autotune[gpu]')"
