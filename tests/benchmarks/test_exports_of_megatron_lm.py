"""The table of flags and a few exports, compared with the real parser of the checkout that MEGATRON_LM names."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks.exports.ask import options
from benchmarks.exports.checkout import VARIABLE, checkout, checkout_or_exit, tree_of, versions_there
from benchmarks.exports.megatron_lm import VERSIONS, figures
from benchmarks.exports.recipes import LazyRecipe, asked
from tests.draws import few
from trainer.frameworks.megatron_lm.flags import FLAGS
from trainer.recipe.rules import RULES
from trainer.recipe.rules.examples import passing_of, recipe_of

needs_checkout = pytest.mark.skipif(checkout() is None, reason=f"without {VARIABLE}, a checkout of Megatron-LM")
EVERY = 40  # every 40th recipe: `python -m benchmarks.exports megatron-lm` checks all


@pytest.fixture(scope="module", params=VERSIONS if checkout() is None else versions_there(checkout_or_exit(), VERSIONS))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def examples_of_rules() -> list[LazyRecipe]:
    """Returns both examples of every rule: a recipe that passes it, and one that violates it.
    Leaves out those on a GPU whose compute capability is unknown: the parser asks for it."""
    both = ((rule, side) for rule in RULES for side in (passing_of(rule), rule.breaking))
    every = (LazyRecipe(origin=f"rule {rule.id}", make=partial(recipe_of, side)) for rule, side in both)
    return [each for each in every if each.recipe.hardware.compute_capability is not None]


def _folder() -> Path:
    folder = checkout()
    assert folder is not None
    return folder


@needs_checkout
def test_the_real_parser_has_the_flags_that_the_table_says(version: str) -> None:
    with tree_of(_folder(), version) as tree:
        known = options(tree)
    for flag in FLAGS:
        assert (flag.flag in known) == flag.known_to(version), flag.flag
        if flag.flag in known:
            assert (known[flag.flag]["nargs"] == 0) == (flag.form == "switch"), flag.flag


@needs_checkout
def test_check_and_the_real_parser_agree_and_no_knob_moves(version: str) -> None:
    found = figures(_folder(), version, asked()[::EVERY])
    assert found.of(ours=True, theirs=False) == []
    assert found.of(ours=False, theirs=True) == []
    assert [verdict.unkept for verdict in found.verdicts if verdict.unkept] == []
    assert found.of(ours=False, theirs=False)


@needs_checkout
@pytest.mark.parametrize("first", few(range(4), 1))
def test_check_refuses_every_example_of_a_rule_that_the_real_parser_refuses(version: str, first: int) -> None:
    found = figures(_folder(), version, examples_of_rules()[first::4])
    assert [(v.asked.origin, v.theirs) for v in found.of(ours=False, theirs=True)] == []


def test_the_recipes_asked_about_are_those_of_the_table_the_examples_and_the_starters() -> None:
    assert {each.origin for each in asked()} == {"table", "example", "starter"}
