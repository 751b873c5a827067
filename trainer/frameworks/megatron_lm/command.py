"""The command of a rank with Megatron-LM: the user's own with the recipe in it, else Megatron-LM's program on mock
data. Of the user's arguments those that the recipe decides are edited; all others stay."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.frameworks.framework import RankCommand
from trainer.frameworks.megatron_lm.arguments import ARGUMENTS
from trainer.frameworks.megatron_lm.batch_schedule import BATCH, schedule_of
from trainer.frameworks.megatron_lm.flags import BY_NAME, HEAD, Flag, version_of
from trainer.frameworks.megatron_lm.model import model_spellings, program
from trainer.frameworks.megatron_lm.required import mock_data_words, required_words
from trainer.frameworks.megatron_lm.spelling import knob_spellings, worded
from trainer.launch_scripts.argv import Words, join, split
from trainer.recipe import Recipe
from trainer.recipe.architecture import Architecture
from trainer.recipe.knobs import KNOBS

PLACE = "{args}"
# fields on which command and recipe need not agree: the tokenizer defines the first, the recipe writes the second
VOCABULARY = ("vocab_size", "make_vocab_size_divisible_by")
# Arguments of a run that ends by itself: pretrain_gpt.py requires them and a recipe does not decide them
SHORT = ("--train-iters", "50", "--lr", "3e-4", "--min-lr", "3e-5", "--lr-decay-style", "constant", "--eval-iters", "0",
         "--log-interval", "1", "--log-throughput", "--distributed-timeout-minutes", "60")  # fmt: skip


def rank_command(recipe: Recipe, named: str | None, bursts: Path | None) -> RankCommand:
    """Returns the command for a version. Raises BadInputError for an unknown one."""
    version = version_of(named)
    trainer = recipe.trainer
    argv = _own_program(recipe, version) if trainer is None else with_recipe(trainer.command, recipe, version)
    spelled = (*model_spellings(recipe, version), *knob_spellings(recipe, version))
    return RankCommand(argv=argv, lost=tuple(f"{each.name} ({each.why_not})" for each in spelled if each.lost))


def _own_program(recipe: Recipe, version: str) -> tuple[str, ...]:
    required = (word for each in required_words(recipe, version) for word in each.words)
    words = (*recipe_words(recipe, version), *required, *mock_data_words(recipe, version), *SHORT)
    return ("python", "-u", *shlex.split(program(recipe, version)), *words)


def recipe_words(recipe: Recipe, version: str = HEAD) -> tuple[str, ...]:
    """Returns the arguments for the model and every knob, for a version.

    Leaves out settings outside a recipe, and the vocabulary size, which the user's tokenizer decides.
    """
    spellings = [*model_spellings(recipe, version), *knob_spellings(recipe, version)]
    return tuple(word for spelling in spellings for word in spelling.words)


def with_recipe(command: Sequence[str], recipe: Recipe, version: str = HEAD) -> tuple[str, ...]:
    """Returns the command with the recipe's arguments, and those that Megatron-LM requires with them, at its end or in
    place of {args}.

    Removes the user's words that are repeated or that contradict the recipe, since most switches have no off-flag.
    Settings that the recipe does not mention stay as in the command.
    """
    listed = split(command)
    theirs = {each.flag for each in listed if is_of_a_fork(each)}
    if schedule_of(command) is not None:
        theirs.add(BATCH)
    words = join(each for each in split(recipe_words(recipe, version)) if each.flag not in theirs)
    written = {each.flag for each in split(words)}
    kept = [each for each in listed if each.flag in theirs or not (each.flag in written or _contradicts(each, recipe))]
    flags = {each.flag for each in kept}
    demanded = (required.words for required in required_words(recipe, version) if required.demanded)
    added = (*words, *(word for each in demanded if each[0] not in flags for word in each))
    left = join(kept)
    at = left.index(PLACE) if PLACE in left else len(left)
    return (*left[:at], *added, *left[at + 1 :])


def is_of_a_fork(words: Words) -> bool:
    """Returns whether a flag of Megatron-LM has a value that only a fork accepts and no recipe can express; it is kept
    as written."""
    flag, argument = BY_NAME.get(words.flag or ""), ARGUMENTS.get(words.flag or "")
    if flag is None or argument is None or flag.field is None or flag.part not in ("model", "knob"):
        return False
    try:
        value = argument.value(words.values)
    except ValueError:
        return bool(words.values)
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if flag.field in KNOBS:
        domain = KNOBS[flag.field].domain
        return domain.kind == "one" and domain.problem(domain.canonical(value)) is not None
    least: dict[str, Any] = {"num_layers": 1, "hidden_size": 1, "num_attention_heads": 1, "vocab_size": 1}
    try:
        Architecture(**{**least, flag.field: value})
    except ValidationError as error:
        return flag.form != "switch" and any(each["loc"][:1] == (flag.field,) for each in error.errors())
    return False


def of_a_fork(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (field, words) for the user's values that no recipe can express."""
    for each in split(command):
        flag = BY_NAME.get(each.flag or "")
        if flag is not None and flag.field is not None and is_of_a_fork(each):
            yield flag.field, " ".join(each.argv)


def unmentioned(command: Sequence[str], recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yields (field, flag) for the user's words that set a field which a recipe can express and this one does not
    mention."""
    for each in split(command):
        flag = BY_NAME.get(each.flag or "")
        if flag is None or flag.field is None or flag.part not in ("model", "knob") or is_of_a_fork(each):
            continue
        if flag.field not in VOCABULARY and not _mentions(recipe, flag.field):
            yield flag.field, flag.flag


# Older flags that Megatron-LM still accepts -> the knob that they set: the recipe's flag replaces them
DEPRECATED = {
    "--recompute-activations": "recompute_granularity",
    "--enable-cuda-graph": "cuda_graph_impl",
    "--external-cuda-graph": "cuda_graph_impl",
    "--moe-enable-deepep": "moe_flex_dispatcher_backend",
    "--num-layers-per-virtual-pipeline-stage": "virtual_pipeline_model_parallel_size",
    "--moe-router-padding-for-fp8": "moe_router_padding_for_quantization",
}


def _contradicts(each: Words, recipe: Recipe) -> bool:
    if each.flag in DEPRECATED:
        return _mentions(recipe, DEPRECATED[each.flag])
    flag = BY_NAME.get(each.flag or "")
    if flag is None or flag.part == "required":
        return False
    if flag.part == "precision" or flag.field is None:
        return flag.part == "precision"
    if not _mentions(recipe, flag.field):
        return False
    value = _value(recipe, flag)
    if flag.form == "switch":
        return bool(flag.means is not None and value != flag.means)
    return value is None or tuple(worded(flag, value))[1:] != each.values


def _value(recipe: Recipe, flag: Flag) -> Any:
    assert flag.field is not None
    return recipe.knob(flag.field) if flag.field in KNOBS else getattr(recipe.architecture, flag.field, None)


def _mentions(recipe: Recipe, field: str) -> bool:
    """Returns whether the recipe sets `field`: any field of a preset, the written fields of a model, layout and
    batch."""
    if field in KNOBS:
        return KNOBS[field].section != "knobs" or field in recipe.knobs
    if field in VOCABULARY:
        return False
    return isinstance(recipe.model, str) or field in recipe.architecture.model_fields_set
