"""The recipe as words of an argument list that is the user's own: what it decides, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trainer.command_line.megatron_lm.beside import words_beside
from trainer.command_line.megatron_lm.flags import FLAGS, version_of
from trainer.command_line.megatron_lm.model import model_spellings
from trainer.command_line.megatron_lm.spelling import knob_spellings
from trainer.recipe import Recipe

# The user's tokenizer decides these; the recipe's own vocab_size is for estimates
VOCABULARY = frozenset({"--vocab-size", "--make-vocab-size-divisible-by"})


def spelled_flags() -> frozenset[str]:
    """Every flag that a recipe decides: its words replace the user's."""
    return frozenset(flag.flag for flag in FLAGS if flag.part != "beside") - VOCABULARY


def recipe_words(recipe: Recipe, *, version: str | None = None, said: Collection[str] = ()) -> tuple[str, ...]:
    """Model, layout, batch, precision and knobs as flags with their values, in the words of a version (None: the
    newest), and what Megatron-LM asks for beside them, unless it is among the flags `said`."""
    groups = _groups(recipe, version_of(version), said)
    return tuple(word for words in groups if words and words[0] not in VOCABULARY for word in words)


def _groups(recipe: Recipe, version: str, said: Collection[str]) -> Iterator[tuple[str, ...]]:
    for spelling in (*model_spellings(recipe, version), *knob_spellings(recipe, version)):
        yield spelling.words
    for beside in words_beside(recipe, version):
        if beside.words[0] not in said:
            yield beside.words
    if recipe.hardware.is_cpu:
        yield ("--transformer-impl", "local")  # Megatron-LM's default needs a GPU
