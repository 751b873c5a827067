"""Checks that Megatron-LM's parser reads a command and its import alike, where MEGATRON_LM is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.importing import arguments_file, scripts
from autotune.importing.found import ImportOptions, Started
from autotune.importing.reading import imported
from benchmarks.exports.ask import answers, capability, options
from benchmarks.exports.checkout import checkout, tree_of, versions_there
from tests.autotune.importing.starts import STARTS, asked_of
from tests.rows import filled
from trainer.frameworks.megatron_lm.agreement import SPELLINGS
from trainer.frameworks.megatron_lm.arguments import ARGUMENTS, defaults
from trainer.frameworks.megatron_lm.command import with_recipe
from trainer.frameworks.megatron_lm.settle import settled
from trainer.launch_scripts.argv import join, split
from trainer.launch_scripts.variables import environment
from trainer.recipe import Recipe

MEGATRON_LM = checkout()
VERSIONS = ("0.16.1", "head")
# a flag of one release only: dest and words taken as the newer has them
MOVED = {"--cuda-graph-scope"}
# a recipe always says its batch, which the parser notes for --step-batch-size-schedule alone
SAID_NOW = {"_is_global_batch_size_explicitly_specified"}

pytestmark = pytest.mark.skipif(MEGATRON_LM is None, reason="MEGATRON_LM names no checkout of Megatron-LM")


@pytest.fixture(scope="module", params=VERSIONS)
def tree(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """Yields a version, and its files."""
    assert MEGATRON_LM is not None
    if request.param not in versions_there(MEGATRON_LM, VERSIONS):
        pytest.skip(f"the checkout holds no {request.param}")
    with tree_of(MEGATRON_LM, request.param) as folder:
        yield request.param, folder


def test_a_command_and_what_was_made_of_it_give_the_parser_the_same_arguments(tree: tuple[str, Path]) -> None:
    version, folder = tree
    requests: list[dict[str, Any]] = []
    worlds: list[int] = []
    for name in filled(STARTS):
        started, recipe, rest = _started(asked_of(name)), *_made(asked_of(name))
        requests.append(_request(2 * len(worlds), started.argv, recipe))
        requests.append(_request(2 * len(worlds) + 1, list(with_recipe(rest, recipe, version)), recipe))
        worlds.append(recipe.world_size)
    said = answers(folder, requests)
    for name, world, before, after in zip(STARTS, worlds, said[::2], said[1::2], strict=True):
        assert (name, before["refused"], after["refused"]) == (name, None, None)
        assert (name, _differences(before["args"], after["args"], world)) == (name, {})


def test_the_table_of_arguments_is_the_parsers_own(tree: tuple[str, Path]) -> None:
    version, folder = tree
    there = options(folder)
    assert {flag for flag in there if flag.startswith("--") and flag != "--help"} <= ARGUMENTS.keys()
    if version == "head":
        dests = {flag: row["dest"] for flag, row in there.items() if flag in ARGUMENTS and flag not in MOVED}
        assert dests == {flag: ARGUMENTS[flag].dest for flag in dests}


def _started(asked: ImportOptions) -> Started:
    text = Path(asked.file).read_text(encoding="utf-8")
    if asked.file.endswith(".sh"):
        return scripts.started(text, asked)
    if asked.file.endswith(".yaml"):
        return arguments_file.from_yaml(arguments_file.read_yaml(text), asked)
    return arguments_file.from_text(text, asked)


def _made(asked: ImportOptions) -> tuple[Recipe, Sequence[str]]:
    """Returns the recipe, and the arguments that remain in the list."""
    made = imported(asked)
    assert made.changed == {}
    return made.recipe, made.found.command[len(_started(asked).program) :]


def _request(number: int, argv: Sequence[str], recipe: Recipe) -> dict[str, Any]:
    """Returns the parser's request, without a fork's own flags, which this parser does not have."""
    return {
        "id": number,
        "argv": list(join(words for words in split(argv) if words.flag in ARGUMENTS)),
        "env": environment(recipe),
        "world_size": recipe.world_size,
        "capability": capability(recipe),
    }


def _differences(before: dict[str, Any], after: dict[str, Any], world: int) -> dict[str, tuple[Any, Any]]:
    """Returns (before, after) of each name whose value differs; deprecated spellings of one setting count as what they
    are settled to."""
    names = (
        {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} - SPELLINGS - SAID_NOW
    )
    left = settled({**defaults(), **before}, world_size=world)
    right = settled({**defaults(), **after}, world_size=world)
    return {name: (before.get(name), after.get(name)) for name in sorted(names) if left.get(name) != right.get(name)}
