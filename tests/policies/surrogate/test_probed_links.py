"""The lesson of measured links before any burst: the network's factor and no other part's."""

from __future__ import annotations

import math

import msgspec
import pytest

from policies.surrogate.links import lesson_of_links
from policies.surrogate.prior import prior_of
from policies.surrogate.time import fit_time
from tests.policies.drawn import links
from trainer.estimate.time.constants import constants
from trainer.estimate.time.links import across_gb_s
from trainer.recipe import Recipe, load_recipe


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("deepseek-v3-1024xh100")


def test_links_as_the_tables_have_them_teach_that_they_are_so(recipe: Recipe) -> None:
    usual = float(across_gb_s(recipe.hardware, constants(), "collective"))
    lesson = lesson_of_links(links(usual), recipe)
    assert lesson is not None
    assert lesson.mean == pytest.approx({"network": 0.0, "collective_latency": 0.0})


def test_a_network_at_half_its_rate_is_predicted_to_be_slow_before_any_burst(recipe: Recipe) -> None:
    usual = float(across_gb_s(recipe.hardware, constants(), "collective"))
    lesson = lesson_of_links(links(usual / 2), recipe)
    assert lesson is not None
    theta = fit_time([], prior_of([lesson])).theta
    assert math.log(0.5) < theta["network"] < 0.7 * math.log(0.5)
    assert theta["nvlink"] == theta["gemm"] == 0.0


def test_a_rate_far_from_any_of_nccl_teaches_nothing(recipe: Recipe) -> None:
    """Probes with gloo over a management network, where NCCL would have used InfiniBand."""
    lesson = lesson_of_links(links(0.01), recipe)
    assert lesson is not None
    assert set(lesson.mean) == {"collective_latency"}


def test_ranks_of_cpus_learn_their_links_where_each_has_a_node_of_its_own() -> None:
    recipe = load_recipe("cpu-moe")
    alone = msgspec.structs.replace(links(0.0125, latency_us=900.0), ranks_per_node=1)
    lesson = lesson_of_links(alone, recipe)
    assert lesson is not None
    theta = fit_time([], prior_of([lesson])).theta
    assert theta["cpu_links"] == pytest.approx(math.log(0.0125 / constants()["cpu_gb_s"]), rel=0.05)
    assert theta["cpu_products"] == 0.0
    assert lesson_of_links(links(0.0125), recipe) is None


def test_nodes_of_one_nvlink_domain_learn_nothing_of_a_network(recipe: Recipe) -> None:
    domain = recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"gpu": "gb200", "nodes": 2})})
    small = domain.model_copy(update={"cluster": domain.cluster.model_copy(update={"gpus_per_node": 4})})
    assert lesson_of_links(links(1.0), small) is None
