"""Checks for settings of a recipe that this engine or machine cannot provide: reported, so that nothing is dropped
silently.

Without Transformer Engine Megatron-Core refuses some of these late and ignores the others; here they are refused
together, before the model is built.
"""

from __future__ import annotations

from trainer.recipe import Recipe
from trainer.recipe.rules.local import needing

# fields of the architecture that the layers standing in for its attention do not have
FIELDS_THAT_NEED_TRANSFORMER_ENGINE = ("softmax_type", "window_size", "moe_latent_size")


def missing_transformer_engine(recipe: Recipe) -> str | None:
    """Returns the message to a user whose recipe needs Transformer Engine where there is none; None when nothing
    does."""
    asked = [f"{knob}: {value}" for knob, value in needing(recipe).items()]
    moved = recipe.architecture.model_dump(exclude_defaults=True)
    asked += [f"{field}: {moved[field]}" for field in FIELDS_THAT_NEED_TRANSFORMER_ENGINE if field in moved]
    if not asked:
        return None
    return f"Transformer Engine cannot be used here, and needs it: {', '.join(asked)} (pip install 'moe-autotune[gpu]')"
