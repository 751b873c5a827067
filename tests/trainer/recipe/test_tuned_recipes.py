"""NVIDIA's hand-tuned recipes are recipes of ours, and no rule calls one of them an error."""

import pytest

from tests.rows import filled
from tests.trainer.recipe import tuned_recipes
from trainer.estimate.memory.estimate import estimate_memory
from trainer.recipe.rules import FindingKind, check
from trainer.recipe.schema import Recipe

# Generated for every precision alike: Megatron-Core takes them, Transformer Engine refuses MXFP8 below compute
# capability 10. They pass with a warning.
MXFP8_ON_HOPPER = {
    "bridge-v0.4.0:GPT_OSS_120B_PRETRAIN_CONFIG_H100_FP8_MX_V1",
    "bridge-v0.4.0:GPT_OSS_120B_PRETRAIN_CONFIG_H100_FP8_MX_V2",
}


@pytest.fixture(scope="module")
def recipes() -> list[Recipe]:
    return [tuned_recipes.recipe_of_row(row) for row in filled(tuned_recipes.rows())]


def test_no_tuned_recipe_breaks_a_rule(recipes: list[Recipe]) -> None:
    errors = {
        recipe.name: [finding.rule for finding in check(recipe) if finding.kind is FindingKind.ERROR]
        for recipe in recipes
    }
    assert {name: rules for name, rules in errors.items() if rules} == {}


def test_a_format_the_gpu_does_not_have_is_reported(recipes: list[Recipe]) -> None:
    named = {recipe.name for recipe in recipes for finding in check(recipe) if finding.rule == "format-suits-gpu"}
    assert named == MXFP8_ON_HOPPER


def test_tuned_recipes_have_a_memory_estimate(recipes: list[Recipe]) -> None:
    for recipe in filled(recipes[::4]):
        estimate = estimate_memory(recipe)
        assert 0 < estimate.peak_gib < estimate.upper_gib, recipe.name
