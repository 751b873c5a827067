"""Target `megatron-lm`: a shell fragment with the environment and every argument of `pretrain_gpt.py`.

What a recipe does not decide (data, tokenizer, schedule, checkpoints) is left to "$@" and said in a comment, and so
is every knob that was not written, with the reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from autotune.export.target import Target
from autotune.looks.quantities import knob_value
from trainer.command_line.megatron_lm.spelling import Spelling, environment, knob_spellings, model_words
from trainer.recipe import Recipe

WIDTH = 110


def render(recipe: Recipe) -> str:
    """The whole fragment; it can be sourced or run by bash as it is."""
    spellings = knob_spellings(recipe)
    lines = [
        *_header(recipe),
        "",
        *(f"export {name}={shlex.quote(value)}" for name, value in environment(recipe).items()),
        "",
        *_array("MODEL_ARGS", model_words(recipe)),
        "",
        *_array("TUNED_ARGS", (spelling.words for spelling in spellings if spelling.words)),
        "",
        *_not_written(recipe, spellings),
        "",
        *_launch(recipe),
    ]
    return "\n".join(lines) + "\n"


def _header(recipe: Recipe) -> Iterator[str]:
    yield "#!/usr/bin/env bash"
    yield f"# {_one_line(recipe.name)}: Megatron-LM arguments written by moe-autotune."
    yield "# Not part of a recipe, give as arguments: data, tokenizer, --lr and schedule, --train-iters, checkpoints."
    yield f"# Without data: --mock-data --tokenizer-type NullTokenizer --vocab-size {recipe.architecture.vocab_size}"
    yield "#   --train-iters 50 --lr 3e-4 --eval-iters 0 --log-interval 1 --log-throughput"
    if recipe.hardware.is_cpu:
        yield "# This recipe was made for CPU ranks; pretrain_gpt.py needs GPUs."
    if recipe.architecture.hybrid:
        yield f"# The layer pattern {_one_line(recipe.architecture.hybrid)} is not a GPT model: use pretrain_hybrid.py."


def _array(name: str, groups: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A bash array, a flag with its values a line: safe for every value, and comments may stand between."""
    yield f"{name}=("
    yield from (f"  {shlex.join(words)}" for words in groups)
    yield ")"


def _not_written(recipe: Recipe, spellings: list[Spelling]) -> Iterator[str]:
    """Each knob without a word in the arrays, under its reason; lost values first, one a line."""
    for spelling in spellings:
        if spelling.lost:
            value = knob_value(recipe.knob(spelling.knob))
            yield f"# NOT EXPRESSED: {spelling.knob}: {_one_line(value)} ({spelling.why_not})"
    silent = [spelling for spelling in spellings if spelling.why_not and not spelling.lost]
    for reason in dict.fromkeys(spelling.why_not for spelling in silent):
        names = [spelling.knob for spelling in silent if spelling.why_not == reason]
        yield from _wrapped(f"# Not written, {reason}:", names)


def _wrapped(start: str, names: list[str]) -> Iterator[str]:
    line = start
    for name in names:
        if len(line) + len(name) + 1 > WIDTH:
            yield line
            line = "#  "
        line += f" {name}"
    yield line


def _launch(recipe: Recipe) -> Iterator[str]:
    per_node = recipe.cluster.gpus_per_node or recipe.hardware.gpus_per_node
    where = f"--nnodes {recipe.cluster.nodes} --nproc-per-node {per_node}"
    if recipe.cluster.nodes > 1:
        where += ' --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
    yield f"torchrun {where} \\"
    yield '  pretrain_gpt.py "${MODEL_ARGS[@]}" "${TUNED_ARGS[@]}" "$@"'


def _one_line(text: str) -> str:
    """A comment must not end where the text has a line break."""
    return " ".join(text.split())


TARGET = Target(name="megatron-lm", render=render)
