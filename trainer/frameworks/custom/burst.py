"""Fills in the command template of a trainer of any other kind.

A word that is exactly `{args}` or `{env}` becomes many: the recipe as Megatron-LM's arguments, or as NAME=VALUE. Inside
a word, `{out}` is a folder for the trainer's output, `{iterations}` the number of iterations, and `{profile_start}`,
`{profile_end}` and `{profile_ranks}` are what to trace.
"""

from __future__ import annotations

from trainer.frameworks.burst import BurstRequest
from trainer.frameworks.megatron_lm.command import recipe_words
from trainer.frameworks.megatron_lm.flags import version_of
from trainer.launch_scripts.variables import environment


def burst_argv(request: BurstRequest) -> tuple[str, ...]:
    many = {
        "{args}": recipe_words(request.recipe, version_of(request.trainer.version)),
        "{env}": tuple(f"{name}={value}" for name, value in environment(request.recipe).items()),
    }
    one = {
        "{out}": str(request.folder),
        "{iterations}": str(request.bounds.last),
        "{profile_start}": str(request.bounds.profile_start),
        "{profile_end}": str(request.bounds.profile_end),
        "{profile_ranks}": ",".join(map(str, request.ranks)),
    }
    return tuple(filled for word in request.trainer.command for filled in many.get(word, (_filled(word, one),)))


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
