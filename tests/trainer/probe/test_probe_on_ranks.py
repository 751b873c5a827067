"""A probe on real CPU ranks: all its rows, and its deadline."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import HANG_S
from trainer.microbenchmarks.groups import rows_of
from trainer.probe.probe import probe
from trainer.recipe import load_recipe


@pytest.mark.thorough
@pytest.mark.megatron
def test_two_cpu_ranks_measure_every_row_planned_for_them(tmp_path: Path) -> None:
    recipe = load_recipe("cpu-moe").replace({"precision": "bf16"})
    rows, folder = rows_of(recipe), tmp_path / "probe"
    found = probe(recipe, home=tmp_path / "engine", folder=folder, rows=rows, within_s=HANG_S, group_s=HANG_S)
    assert found.failure is None
    assert found.links is None  # one node has none
    assert {row.name: row.failure for row in found.rows if row.measured is None} == {}
    assert {row.group for row in found.rows} == {"links", "compute", "host", "memory", "works"}
    assert {row.ranks for row in found.rows if row.group == "compute"} == {2}


@pytest.mark.thorough
@pytest.mark.megatron
@pytest.mark.usefixtures("light_agent")
def test_a_probe_ends_at_its_deadline_with_what_it_has(tmp_path: Path) -> None:
    base = load_recipe("cpu-moe").replace({"expert_model_parallel_size": 1})
    recipe = base.model_copy(update={"cluster": base.cluster.model_copy(update={"gpus_per_node": 1})})
    found = probe(recipe, home=tmp_path / "engine", folder=tmp_path / "probe", rows=rows_of(recipe), within_s=0.0)
    assert found.failure is None
    assert {row.failure for row in found.rows} == {"no time was left"}
