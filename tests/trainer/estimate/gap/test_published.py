"""The published runs that ship: recipes that are what their rows say, and which of them a recipe is compared with."""

from __future__ import annotations

from operator import attrgetter

import pytest

from tests.rows import for_every_row
from trainer.errors import BadInputError
from trainer.estimate.gap.published import (
    FAST,
    Published,
    nearest_published,
    published_run,
    published_runs,
    same_model,
)
from trainer.model.flops import model_flops_per_token
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.models import presets

ROWS = list(published_runs().values())


@for_every_row(ROWS, name=attrgetter("row"))
def test_every_run_has_a_recipe_a_source_and_rates_that_agree(run: Published) -> None:
    per_token = model_flops_per_token(run.recipe.architecture, run.recipe.training.seq_length) / 1e12
    assert run.tokens_per_s_per_gpu * per_token == pytest.approx(
        run.model_tflops_per_gpu, rel=0.25
    )  # some count windows
    assert ":" in run.source
    assert run.model in presets()


@for_every_row(ROWS[::9], name=attrgetter("row"))
def test_a_published_recipe_is_compared_with_an_equally_fast_run_of_the_same_work(run: Published) -> None:
    found = nearest_published(run.recipe)
    assert found is not None
    assert found.comparable
    assert found.run.tokens_per_s_per_gpu >= FAST * run.tokens_per_s_per_gpu


def test_where_nothing_is_comparable_the_nearest_says_what_differs(small: Recipe) -> None:
    found = nearest_published(small)
    assert found is not None
    assert found.differs["model"] == ("8 layers of 2048", found.run.model)
    qwen = published_run("P0313").recipe
    h800 = qwen.model_copy(update={"cluster": qwen.cluster.model_copy(update={"gpu": "h800"})})
    other = nearest_published(h800)
    assert other is not None
    assert other.differs == {"gpu": ("h800", "h100")}


def test_no_published_run_is_on_cpus() -> None:
    assert nearest_published(load_recipe("cpu-moe")) is None


def test_a_padded_vocabulary_and_mtp_are_the_same_model() -> None:
    model = presets()["deepseek-v3"]
    assert same_model(model, model.model_copy(update={"mtp_num_layers": None, "vocab_size": model.vocab_size + 512}))
    assert not same_model(model, model.model_copy(update={"moe_router_topk": 4}))


def test_a_row_that_is_not_there_is_refused_with_an_example() -> None:
    with pytest.raises(BadInputError, match="no published run"):
        published_run("P9999")


@pytest.fixture
def small() -> Recipe:
    model = presets()["qwen3-30b-a3b"].model_copy(update={"num_layers": 8})
    return published_run("P0313").recipe.model_copy(update={"model": model})
