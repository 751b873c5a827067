"""Changing a degree also changes the knobs that depend on it, so that the new recipe is legal."""

from __future__ import annotations

import pytest

from policies.candidates.neighbours import moves
from policies.changes.degrees import DEGREES, even_cost_layouts, with_pp, with_vpp
from policies.changes.legality import derive
from policies.surrogate.kernel import features
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe
from trainer.recipe.layout import layer_counts_of_ranks
from trainer.recipe.load import recipe_from
from trainer.recipe.source import parse_source

TEXT = """
model: {model}
cluster: {{gpu: h100, nodes: 32}}
training: {{global_batch_size: 2048}}
parallelism: {{tp: 1, pp: {pp}, ep: 8}}
knobs: {{use_distributed_optimizer: true, pipeline_model_parallel_layout: {layout}}}
"""


def of_61_layers(pp: int = 1, layout: str | None = None, model: str = "deepseek-v3") -> Recipe:
    return recipe_from(parse_source(TEXT.format(model=model, pp=pp, layout=layout or "null"), name="r"))


@pytest.mark.parametrize("model", ["deepseek-v3", "kimi-k2"])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_layers_that_do_not_divide_get_a_layout_where_pp_changes(model: str, size: int) -> None:
    recipe = of_61_layers(model=model)
    derived = [derive(recipe, changes) for changes in with_pp(recipe, size)]
    legal = [each for each in derived if isinstance(each, Recipe)]
    assert legal, derived
    assert sum(layer_counts_of_ranks(legal[0])) == 61
    assert legal[0].knob(DEGREES["pp"]) == size


def test_a_layout_goes_or_changes_with_pp() -> None:
    split = derive(of_61_layers(), with_pp(of_61_layers(), 8)[0])
    assert isinstance(split, Recipe)
    for size in (1, 4, 16):
        assert any(isinstance(derive(split, changes), Recipe) for changes in with_pp(split, size))


def test_a_pipeline_of_layers_that_do_not_divide_can_be_interleaved() -> None:
    recipe = derive(of_61_layers(), with_pp(of_61_layers(), 8)[0])
    assert isinstance(recipe, Recipe)
    assert isinstance(derive(recipe, with_vpp(recipe, 2)[0]), Recipe)


def test_layers_that_divide_get_no_layout() -> None:
    recipe = of_61_layers(model="qwen3-30b-a3b")
    assert with_pp(recipe, 4) == [
        {DEGREES["pp"]: 4, "virtual_pipeline_model_parallel_size": None, "overlap_p2p_comm": False}
    ]


def test_pp_of_61_layers_is_a_move() -> None:
    assert [move for move in moves(of_61_layers()) if move.dimension == "PP"]


def test_an_even_layout_is_not_a_candidate_again() -> None:
    interleaved = derive(of_61_layers(), with_pp(of_61_layers(), 8)[0] | with_vpp(of_61_layers(pp=8), 2)[0])
    assert isinstance(interleaved, Recipe)
    for changes in even_cost_layouts(interleaved):
        changed = interleaved.replace(changes)
        assert changed.knob("pipeline_model_parallel_layout") != interleaved.knob("pipeline_model_parallel_layout")
        assert changes not in even_cost_layouts(changed)


def test_what_divides_into_equal_stages_is_not_written_out() -> None:
    text = "{{model: mixtral-8x7b, cluster: {{gpu: h100, nodes: 4}}, parallelism: {{pp: 4, ep: 8, {vpp}}}}}"
    plain = recipe_from(parse_source(text.format(vpp="vpp: 8"), name="r"))
    assert even_cost_layouts(plain) == []


def test_recipes_whose_layout_means_the_same_chunks_have_the_same_features() -> None:
    written = derive(of_61_layers(), with_pp(of_61_layers(), 8)[0] | with_vpp(of_61_layers(pp=8), 2)[0])
    assert isinstance(written, Recipe)
    unwritten = written.replace({"virtual_pipeline_model_parallel_size": None})
    assert unwritten.digest() != written.digest()
    where = features(tabulate([written, unwritten]))
    assert (where[0] == where[1]).all()
