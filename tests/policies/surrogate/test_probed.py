"""A probe moves the surrogate before any burst: time and memory, by what its rows measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.surrogate.factors import factors
from policies.surrogate.memory import fit_memory
from policies.surrogate.probed import expected_rows, with_probe
from policies.surrogate.probed_memory import memory_prior_of
from policies.surrogate.time import fit_time, table_prior
from trainer.engines.simulated.probe import simulate_probe
from trainer.engines.simulated.step import Simulation
from trainer.estimate.candidates import tabulate
from trainer.microbenchmarks.groups import rows_of
from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe

MOVED: dict[str, dict[str, Any]] = {
    "compute": {"dense_gemm": 0.6, "attention": 1.6},
    "links": {"network": 0.4, "nvlink": 0.7},
}
TRUTH = {"gemm": np.log(0.6), "attention": np.log(1.6), "network": np.log(0.4), "nvlink": np.log(0.7)}


def recipe(machine: dict[str, Any]) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "probed",
            "model": "qwen3-30b-a3b",
            "cluster": {"gpu": "h100", "nodes": 4},
            "training": {"global_batch_size": 512},
            "parallelism": {"expert_model_parallel_size": 8},
            "knobs": {"moe_grouped_gemm": True, "moe_permute_fusion": True, "use_distributed_optimizer": True},
            "burst": {"engine": "simulated", "machine": machine},
        }
    )


def rows(base: Recipe) -> list[Row]:
    return simulate_probe(base, rows_of(base), seed=3).rows


@pytest.fixture(scope="module")
def moved() -> Recipe:
    return recipe(MOVED)


def test_a_factor_that_rows_inform_is_near_the_machines_own_key(moved: Recipe) -> None:
    prior = with_probe(table_prior(), rows(moved), moved)
    plain = with_probe(table_prior(), rows(recipe({})), recipe({}))
    names = [factor.name for factor in factors()]
    found = {name: prior.mean[names.index(name)] - plain.mean[names.index(name)] for name in TRUTH}
    assert found == pytest.approx(TRUTH, abs=0.1)
    assert prior.spread[names.index("gemm")] < 0.5 * table_prior().spread[names.index("gemm")]


def test_what_two_factors_know_only_together_stays_joint(moved: Recipe) -> None:
    prior, names = with_probe(table_prior(), rows(moved), moved), [factor.name for factor in factors()]
    at, also = names.index("grouped"), names.index("rows")
    assert prior.covariance[at, also] > 0.3 * prior.spread[at] * prior.spread[also]


def test_the_first_prediction_of_a_step_is_nearer_with_a_probe(moved: Recipe) -> None:
    assert moved.burst.machine is not None
    truth = np.log(Simulation(moved, moved.burst.machine).step_us / 1e6)
    blind, _ = fit_time([]).predict(tabulate([moved]))
    seeing, _ = fit_time([], with_probe(table_prior(), rows(moved), moved)).predict(tabulate([moved]))
    assert abs(seeing[0] - truth) < abs(blind[0] - truth)


def test_rows_that_measured_nothing_leave_the_prior_as_it_is(moved: Recipe) -> None:
    assert (with_probe(table_prior(), rows_of(moved), moved).mean == 0).all()
    assert memory_prior_of(rows_of(moved), moved).scale == 1.0


def test_a_row_says_what_the_tables_expect_and_which_factors_it_informs(moved: Recipe) -> None:
    planned = rows_of(moved)
    by_kind = {row.kind: expected for row, expected in zip(planned, expected_rows(planned, moved), strict=True)}
    assert by_kind["gemm"].factors == ("gemm",)
    assert {"grouped", "rows", "width", "gemm"} == set(by_kind["grouped"].factors)
    assert by_kind["optimizer"].expected == pytest.approx(1281, rel=0.01)
    assert by_kind["launch"].expected is None


def test_attention_is_expected_to_see_the_whole_sequence_where_layers_see_a_window() -> None:
    model: dict[str, Any] = {"num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 32000}
    windows = {"window_size": (127, 0), "window_attn_skip_freq": 2}
    found = []
    for architecture in (model, model | windows):
        base = recipe({}).model_dump(exclude_unset=True) | {"model": architecture, "parallelism": {}, "knobs": {}}
        given = Recipe.model_validate(base)
        (row,) = [row for row in rows_of(given) if row.kind == "attention"]
        found.append(expected_rows([row], given)[0].expected)
    assert found[0] == pytest.approx(found[1])


def test_memory_rows_are_expected_of_the_layer_that_is_measured() -> None:
    base = Recipe.model_validate(recipe({}).model_dump(exclude_unset=True) | {"model": "qwen3-next-80b-a3b"})
    kept = [row for row in rows(base) if row.kind == "layer_kept"]
    ratios = {
        row.name: (row.measured or 0.0) / (expected.expected or 1.0)
        for row, expected in zip(kept, expected_rows(kept, base), strict=True)
    }
    assert ratios == pytest.approx(dict.fromkeys(ratios, 1.0), abs=0.05)


def test_memory_measured_by_a_probe_counts_before_the_first_burst() -> None:
    tight = {"activations": 1.2, "outside_gib": 4.0, "fragmentation": 0.08, "second_step_gib": 2.0}
    base = recipe({"memory": tight})
    table = tabulate([base])
    blind = fit_memory([], base.memory_limit_gib)
    seeing = fit_memory([], base.memory_limit_gib, memory_prior_of(rows(base), base))
    (before, wide), (after, narrow) = (found.needs(table) for found in (blind, seeing))
    truth = _true_gib(base)
    assert abs(after[0] - truth) < 0.25 * abs(before[0] - truth)
    assert narrow[0] < wide[0]


def _true_gib(base: Recipe) -> float:
    from trainer.engines.simulated.engine import memory_of

    assert base.burst.machine is not None
    found = memory_of(Simulation(base, base.burst.machine))
    return max(found.peak_gib) + found.outside_gib
