"""Compares a model with the presets."""

from __future__ import annotations

from trainer.frameworks.megatron_lm.model import model_words
from trainer.recipe.architecture import Architecture
from trainer.recipe.models import presets


def same_preset(model: Architecture) -> str | None:
    """Returns the preset with the same vocabulary and the same arguments in Megatron-LM, which cover every field that
    acts; None if there is none."""
    words = model_words(model)
    alike = (name for name, preset in presets().items() if preset.vocab_size == model.vocab_size)
    return next((name for name in alike if words is not None and model_words(presets()[name]) == words), None)
