"""Ranks into grids and layers into stages."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.recipe.layout import layer_counts_of_ranks, layers_of_ranks, layout_of, pipeline_stages
from trainer.recipe.rules import FindingKind, check, nearest_valid
from trainer.recipe.rules.examples import recipe_of
from trainer.recipe.rules.rule import Example

sizes = st.sampled_from([1, 2, 3, 4, 6, 8, 16])


def example(**knobs: Any) -> Any:
    return recipe_of(Example(knobs=knobs))


def test_experts_fold_over_the_ranks_of_attention() -> None:
    recipe = example(context_parallel_size=4, expert_model_parallel_size=16, CUDA_DEVICE_MAX_CONNECTIONS=1)
    now = layout_of(recipe)
    assert (now.world, now.dp, now.edp) == (16, 4, 1)
    assert check(recipe) == []


def test_expert_tensor_parallel_follows_tp_when_not_written() -> None:
    recipe = example(tensor_model_parallel_size=2, sequence_parallel=True)
    assert layout_of(recipe).etp == 2


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("", []),
        ("Et*2|t*2L", ["Ett", "ttL"]),
        ("Et|(tt|)*2tmL", ["Et", "tt", "tt", "tmL"]),
        ("E|t,t|L", ["E", "tt", "L"]),
    ],
)
def test_pipeline_layouts_are_spelled_out(text: str, stages: list[str]) -> None:
    assert pipeline_stages(text) == stages


@pytest.mark.parametrize("text", ["Ex|L", "E(t|L", "t*L", "import os", "Et*999999999|L"])
def test_a_text_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not valid"):
        pipeline_stages(text)


@pytest.mark.parametrize(
    ("knobs", "counts"),
    [
        ({}, [4, 4]),
        ({"num_layers_in_first_pipeline_stage": 3}, [3, 5]),
        ({"num_layers_in_last_pipeline_stage": 2}, [6, 2]),
        ({"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}, [4, 4]),
        ({"pipeline_model_parallel_layout": "Et*5|t*3L"}, [5, 3]),
    ],
)
def test_layers_are_counted_by_stage(knobs: dict[str, Any], counts: list[int]) -> None:
    assert layer_counts_of_ranks(example(pipeline_model_parallel_size=2, **knobs)) == counts


def test_interleaved_chunks_alternate_between_ranks() -> None:
    recipe = example(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2)
    assert layers_of_ranks(recipe) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@settings(max_examples=15)
@given(tp=sizes, pp=sizes, cp=sizes, ep=sizes, etp=sizes, vpp=sizes, mbs=sizes)
def test_a_legal_layout_is_found_near_any_other(
    tp: int, pp: int, cp: int, ep: int, etp: int, vpp: int, mbs: int
) -> None:
    recipe = example(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        virtual_pipeline_model_parallel_size=vpp,
        micro_batch_size=mbs,
    )
    near = nearest_valid(recipe)
    assert near is not None
    assert not [finding for finding in check(near) if finding.kind is FindingKind.ERROR]


@settings(max_examples=40)
@given(pp=sizes, vpp=st.sampled_from([1, 2, 4]))
def test_every_layer_is_on_exactly_one_rank(pp: int, vpp: int) -> None:
    recipe = example(pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vpp)
    placed = [index for rank in layers_of_ranks(recipe) for chunk in rank for index in chunk]
    assert sorted(placed) == list(range(recipe.architecture.num_layers))
