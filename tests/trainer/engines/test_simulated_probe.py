"""A probe of the simulated cluster: every key of a machine that a micro-benchmark can see shows in its rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rows import for_every_row
from trainer.engines.simulated.probe import KINDS, simulate_probe
from trainer.microbenchmarks.groups import rows_of
from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe

QUIET = {"noise": {"step": 0.0, "burst": 0.0}}
SEEN = {  # key of the machine → the kind of row that shows it, and times what it shows at twice the key
    "compute.dense_gemm": ("gemm", 0.52),  # and quantization of its inputs
    "compute.attention": ("attention", 0.5),
    "compute.memory_bound": ("memory_bound", 0.5),
    "compute.quantize": ("quantize", 2.0),
    "compute.optimizer": ("optimizer", 0.5),
    "links.nvlink": ("ring_near", 0.5),
    "links.network": ("ring_far", 0.5),
    "links.latency": ("small_ring_near", 1.64),  # and its bytes
    "links.pcie": ("copy", 0.5),
    "links.alltoall": ("dispatch", 0.5),
    "overlap.slowed": ("slowed", 2.0),
    "overlap.dp": ("dp_beside", 0.5),
    "host.launch": ("launch", 2.0),
    "memory.activations": ("layer_kept", 2.0),
}


def recipe(machine: dict[str, Any]) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "probed",
            "model": "deepseek-v3",
            "cluster": {"gpu": "h100", "nodes": 64},
            "training": {"precision": "fp8_blockwise"},
            "parallelism": {"expert_model_parallel_size": 8},
            "burst": {"engine": "simulated", "machine": QUIET | machine},
        }
    )


def played(machine: dict[str, Any]) -> dict[str, Row]:
    """Returns the first row of every kind."""
    base = recipe(machine)
    found: dict[str, Row] = {}
    for row in simulate_probe(base, rows_of(base), seed=1).rows:
        found.setdefault(row.kind, row)
    return found


@pytest.fixture(scope="module")
def plain() -> dict[str, Row]:
    return played({})


def test_every_row_that_is_planned_is_played(plain: dict[str, Row]) -> None:
    assert {row.kind for row in rows_of(recipe({}))} <= set(KINDS)
    assert [row.kind for row in plain.values() if row.measured is None] == []


@for_every_row(SEEN)
def test_every_key_that_a_micro_benchmark_sees_shows_in_its_row(key: str, plain: dict[str, Row]) -> None:
    section, name = key.split(".")
    kind, times = SEEN[key]
    value = 0.5 if key == "overlap.dp" else 2.0
    found = played({section: {name: value}})[kind]
    assert (found.measured or 0) / (plain[kind].measured or 1) == pytest.approx(times, rel=0.05)


def test_keys_of_memory_show_in_gib_and_shares() -> None:
    memory = {"fragmentation": 0.08, "outside_gib": 2.0, "second_step_gib": 1.5}
    found, plain = played({"memory": memory}), played({})
    assert found["fragmentation"].measured == pytest.approx(0.08)
    assert found["second_step"].measured == 1.5
    assert (found["outside"].measured or 0) - (plain["outside"].measured or 0) == pytest.approx(2.0)


def test_recompute_keeps_less_of_a_layer_and_its_peak_stays() -> None:
    found = {row.name: row.measured or 0.0 for row in simulate_probe(recipe({}), rows_of(recipe({})), seed=1).rows}
    kept = [found[f"MoE layer, {how}"] for how in ("nothing recomputed", "all of it recomputed")]
    peaks = [found[f"MoE layer's peak, {how}"] for how in ("nothing recomputed", "all of it recomputed")]
    assert kept[1] < 0.2 * kept[0] < 0.2 * peaks[0]
    assert peaks[1] > 0.8 * peaks[0]
    assert found["dense layer, nothing recomputed"] < kept[0]


def test_a_slow_rank_is_named_where_it_is_among_the_probed() -> None:
    late = played({"stragglers": [{"node": 1, "compute": 1.2}]})
    assert late["gemm"].slow_rank in range(8, 16)
    assert late["launch"].slow_rank is None
    assert played({"stragglers": [{"rank": 500, "compute": 2.0}]})["gemm"].slow_rank is None


def test_a_probe_stops_at_its_deadline_with_what_it_has() -> None:
    base = recipe({})
    whole, cut = (simulate_probe(base, rows_of(base), seed=1, within_s=seconds) for seconds in (120.0, 50.0))
    assert (whole.ranks, cut.seconds) == (16, 50.0)
    assert 45.0 < whole.seconds < 120.0
    left = [row for row in cut.rows if row.failure == "no time was left"]
    assert 0 < len(left) < len(cut.rows)


def test_noise_is_drawn_from_the_seed_alone() -> None:
    base = recipe({"noise": {"step": 0.02, "burst": 0.02}})
    one, again, other = (simulate_probe(base, rows_of(base), seed=seed).rows for seed in (1, 1, 2))
    assert one == again
    assert one != other
