"""A trainer of any other kind: a template of its command, filled in.

A word that is `{args}` or `{env}` alone becomes many: the recipe as Megatron-LM's arguments, and as NAME=VALUE. Inside
a word `{out}` is a folder for what the trainer writes, `{iterations}` how many to train, `{profile_start}`,
`{profile_end}` and `{profile_ranks}` what to trace.
"""

from __future__ import annotations

from trainer.command_line.megatron_lm.flags import version_of
from trainer.command_line.megatron_lm.spelling import environment
from trainer.command_line.megatron_lm.words import recipe_words
from trainer.engines.command.kinds.asked import Asked


def argv(asked: Asked) -> tuple[str, ...]:
    many = {
        "{args}": recipe_words(asked.recipe, version_of(asked.trainer.version)),
        "{env}": tuple(f"{name}={value}" for name, value in environment(asked.recipe).items()),
    }
    one = {
        "{out}": str(asked.folder),
        "{iterations}": str(asked.bounds.last),
        "{profile_start}": str(asked.bounds.profile_start),
        "{profile_end}": str(asked.bounds.profile_end),
        "{profile_ranks}": ",".join(map(str, asked.ranks)),
    }
    return tuple(filled for word in asked.trainer.command for filled in many.get(word, (_filled(word, one),)))


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
