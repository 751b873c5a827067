"""Rows of a probe: planned for any recipe, and what ranks measured in one of them."""

from __future__ import annotations

from tests.rows import filled
from trainer.microbenchmarks.groups import groups, rows_of
from trainer.microbenchmarks.row import Row, failed, measured
from trainer.microbenchmarks.shapes import dispatch_sizes, probed_nodes
from trainer.recipe import load_recipe

ROW = Row(group="compute", kind="gemm", name="a product", unit="us")


def test_groups_are_found_by_being_there_in_the_order_of_their_measurement() -> None:
    assert list(groups()) == ["links", "compute", "host", "memory", "overlap", "works"]


def test_a_recipe_that_no_rule_allows_is_planned_all_the_same() -> None:
    recipe = load_recipe("deepseek-v3-1024xh100").replace({"tensor_model_parallel_size": 3})
    planned = rows_of(recipe)
    assert len({(row.kind, row.name) for row in planned}) == len(planned)
    for row in filled(planned):
        assert row.recipe(recipe).world_size == recipe.world_size


def test_a_probe_needs_two_domains_of_gpus_and_every_cpu_rank() -> None:
    assert probed_nodes(load_recipe("deepseek-v3-1024xh100")) == 2
    assert probed_nodes(load_recipe("cpu-moe")) == 1
    assert dispatch_sizes(load_recipe("deepseek-v3-1024xh100")) == {"inside a domain": 8, "across domains": 16}


def test_a_figure_is_the_median_rank_and_names_the_rank_that_is_slower() -> None:
    found = measured(ROW, {0: [10.0, 11.0, 10.5], 1: [10.2, 10.3, 10.1], 2: [14.0, 14.2, 14.1], 3: [10.4]})
    assert (found.measured, found.low, found.high, found.ranks) == (10.4, 10.4, 10.4, 4)
    assert (found.slow_rank, round(found.slow_by or 0, 2)) == (2, 1.36)
    assert not found.unsteady


def test_ranks_that_are_alike_name_none_and_a_busy_neighbour_shows_in_the_repeats() -> None:
    found = measured(ROW, {0: [10.0, 14.0, 10.5], 1: [10.4, 10.3, 10.6]})
    assert found.slow_rank is None
    assert measured(ROW, {0: [10.0, 14.0, 10.5]}).unsteady


def test_a_row_without_a_figure_says_why() -> None:
    assert measured(ROW, {}).failure == "no rank measured it"
    assert failed(ROW, "no time was left").measured is None
