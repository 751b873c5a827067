"""The recipe as words of an argument list that is the user's own: what it decides, and nothing else."""

from __future__ import annotations

from trainer.command_line.megatron_lm.flags import FLAGS
from trainer.command_line.megatron_lm.spelling import knob_spellings, model_words
from trainer.recipe import Recipe

# The user's tokenizer decides these; the recipe's own vocab_size is for estimates
VOCABULARY = frozenset({"--vocab-size", "--make-vocab-size-divisible-by"})


def spelled_flags() -> frozenset[str]:
    """Every flag that a recipe decides: its words replace the user's."""
    return frozenset(flag.flag for flag in FLAGS if flag.part != "beside") - VOCABULARY


def recipe_words(recipe: Recipe) -> tuple[str, ...]:
    """Model, layout, batch, precision and knobs as flags with their values."""
    knobs = (spelling.words for spelling in knob_spellings(recipe))
    layers = [("--transformer-impl", "local")] if recipe.hardware.is_cpu else []  # Megatron-LM's default needs a GPU
    groups = [words for words in (*model_words(recipe), *knobs, *layers) if words and words[0] not in VOCABULARY]
    return tuple(word for words in groups for word in words)
