"""Exports a recipe as a shell script with the environment and every argument of `pretrain_gpt.py`.

Settings that a recipe does not decide (data, tokenizer, schedule, checkpoints) are left to "$@" and named in a comment,
as is every knob that was not written, with the reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from trainer.frameworks.megatron_lm.flags import version_of
from trainer.frameworks.megatron_lm.model import model_spellings, program
from trainer.frameworks.megatron_lm.required import mock_data_words, required_environment, required_words
from trainer.frameworks.megatron_lm.spelling import Spelling, knob_spellings
from trainer.launch_scripts.variables import environment
from trainer.launch_scripts.writing import comment, torchrun_words
from trainer.recipe import Recipe
from trainer.values import knob_value

WIDTH = 110


def script(recipe: Recipe, named: str | None, origin: Sequence[str]) -> str:
    """Returns the bash script that trains the recipe with Megatron-LM. Raises BadInputError for an unknown version."""
    version = version_of(named)
    model, knobs = model_spellings(recipe, version), knob_spellings(recipe, version)
    lines = [
        *_header(recipe, version, origin),
        "",
        *_environment(recipe),
        "",
        *_array("MODEL_ARGS", (spelling.words for spelling in model if spelling.words)),
        "",
        *_array("TUNED_ARGS", (spelling.words for spelling in knobs if spelling.words)),
        "",
        *_required(recipe, version),
        "",
        *_not_written(recipe, [*model, *knobs]),
        "",
        *_launch(recipe, version),
    ]
    return "\n".join(lines) + "\n"


def _header(recipe: Recipe, version: str, origin: Sequence[str]) -> Iterator[str]:
    of_version = "of its newest version" if version == "head" else version
    yield "#!/usr/bin/env bash"
    yield comment(f"{recipe.name}: Megatron-LM arguments ({of_version}) written by moe-autotune.")
    yield from (comment(line) for line in origin)
    yield "# Not part of a recipe, give as arguments: data, tokenizer, --lr and schedule, --train-iters, checkpoints."
    yield f"# Without data: {' '.join(mock_data_words(recipe, version))}"
    yield "#   --train-iters 50 --lr 3e-4 --eval-iters 0 --log-interval 1 --log-throughput"
    if recipe.hardware.is_cpu:
        yield "# This recipe was made for CPU ranks; pretrain_gpt.py needs GPUs."
    if recipe.architecture.hybrid:
        yield comment(f"The layers are {recipe.architecture.hybrid}.")


def _environment(recipe: Recipe) -> Iterator[str]:
    """Yields the recipe's variables, then those that Megatron-LM requires, each with its reason."""
    yield from (f"export {name}={shlex.quote(value)}" for name, value in environment(recipe).items())
    for name, required in required_environment(recipe).items():
        yield f"# {required.because}:"
        yield f"export {name}={shlex.quote(required.words[0])}"


def _required(recipe: Recipe, version: str) -> Iterator[str]:
    """Yields the lines with arguments that Megatron-LM requires in addition, each below a comment."""
    yield "REQUIRED_ARGS=("
    for required in required_words(recipe, version):
        yield f"  # {required.because}"
        yield f"  {shlex.join(required.words)}"
    yield ")"


def _array(name: str, groups: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yields a bash array, one flag with its values per line, which is safe for every value and allows comments in
    between."""
    yield f"{name}=("
    yield from (f"  {shlex.join(words)}" for words in groups)
    yield ")"


def _not_written(recipe: Recipe, spellings: list[Spelling]) -> Iterator[str]:
    """Yields each field and knob that is not in the arrays, below its reason; values that are lost first, one per
    line."""
    for spelling in spellings:
        if spelling.lost:
            yield comment(f"NOT EXPRESSED: {spelling.name}: {_value(recipe, spelling.name)} ({spelling.why_not})")
    silent = [spelling for spelling in spellings if spelling.why_not and not spelling.lost]
    for reason in dict.fromkeys(spelling.why_not for spelling in silent):
        names = [spelling.name for spelling in silent if spelling.why_not == reason]
        yield from _wrapped(f"# Not written, {reason}:", names)


def _value(recipe: Recipe, name: str) -> str:
    known = type(recipe.architecture).model_fields
    return knob_value(getattr(recipe.architecture, name) if name in known else recipe.knob(name))


def _wrapped(start: str, names: list[str]) -> Iterator[str]:
    line = start
    for name in names:
        if len(line) + len(name) + 1 > WIDTH:
            yield line
            line = "#  "
        line += f" {name}"
    yield line


def _launch(recipe: Recipe, version: str) -> Iterator[str]:
    yield f"torchrun {torchrun_words(recipe)} \\"
    yield f'  {program(recipe, version)} "${{MODEL_ARGS[@]}}" "${{TUNED_ARGS[@]}}" "${{REQUIRED_ARGS[@]}}" "$@"'
