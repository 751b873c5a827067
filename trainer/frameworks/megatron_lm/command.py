"""The command of a rank: the user's own with the recipe in it, else Megatron-LM's own program on mock data."""

from __future__ import annotations

import shlex
from pathlib import Path

from trainer.frameworks.framework import RankCommand
from trainer.frameworks.megatron_lm.beside import mock_data_words, words_beside
from trainer.frameworks.megatron_lm.flags import version_of
from trainer.frameworks.megatron_lm.model import model_spellings, program
from trainer.frameworks.megatron_lm.spelling import knob_spellings
from trainer.frameworks.megatron_lm.words import recipe_words, with_recipe
from trainer.recipe import Recipe

# A run that ends by itself: what a recipe does not decide and pretrain_gpt.py wants said
SHORT = ("--train-iters", "50", "--lr", "3e-4", "--min-lr", "3e-5", "--lr-decay-style", "constant", "--eval-iters", "0",
         "--log-interval", "1", "--log-throughput", "--distributed-timeout-minutes", "60")  # fmt: skip


def rank_command(recipe: Recipe, named: str | None, bursts: Path | None) -> RankCommand:
    """The command in the words of a version. BadInputError for one that is none."""
    version = version_of(named)
    trainer = recipe.trainer
    argv = _own_program(recipe, version) if trainer is None else with_recipe(trainer.command, recipe, version)
    spelled = (*model_spellings(recipe, version), *knob_spellings(recipe, version))
    return RankCommand(argv=argv, lost=tuple(f"{each.name} ({each.why_not})" for each in spelled if each.lost))


def _own_program(recipe: Recipe, version: str) -> tuple[str, ...]:
    beside = (word for each in words_beside(recipe, version) for word in each.words)
    words = (*recipe_words(recipe, version), *beside, *mock_data_words(recipe, version), *SHORT)
    return ("python", "-u", *shlex.split(program(recipe, version)), *words)
