"""`estimate`: the document keeps its contract, and its parts add up to what they are parts of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.estimate.document import estimated
from autotune.estimate.page import estimate_page
from autotune.looks.quantities import gib
from trainer.estimate.time.parts import STEP_PARTS
from trainer.recipe import load_recipe

RECIPE = """\
name: small
model: qwen3-30b-a3b
cluster: {gpu: h100, nodes: 2}
parallelism: {pp: 2, ep: 8}
"""
TIME_PARTS = (
    "compute_s", "ep_s", "ep_exposed_s", "tp_s", "cp_s", "pp_bubble_s", "dp_exposed_s", "host_s", "recompute_s",
    "optimizer_s",
)  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> str:
    (tmp_path / "small.yaml").write_text(RECIPE)
    return str(tmp_path / "small.yaml")


def test_the_document_has_every_field_of_the_contract(small: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", small, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == 1
    memory, time = document["memory"], document["time"]
    assert memory["limit_gib"] == 79.18
    assert 0 < memory["peak_gib"] < memory["upper_gib"]
    assert memory["hottest"]["pp_rank"] in (0, 1)
    assert sum(memory["by_part"].values()) == pytest.approx(memory["peak_gib"])
    assert len(memory["by_pp_rank"]) == 2
    hottest = memory["by_pp_rank"][memory["hottest"]["pp_rank"]]
    assert hottest == pytest.approx(memory["by_part"])
    assert set(TIME_PARTS) <= set(time["by_part"])
    assert sum(time["by_part"][name] for name in STEP_PARTS) == pytest.approx(time["step_s"])
    assert time["tokens_per_s_per_gpu"] > 0
    assert time["model_tflops_per_gpu"] > 0
    assert memory["calibration"]["rows"] > 0
    assert document["calibration"]["rows"] > 0
    assert set(document["calibration"]["error_pct"]) == {"median", "p90"}
    assert document["assumptions"]


def test_people_see_memory_by_part_and_rank_time_by_part_and_what_it_rests_on(
    small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", small]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("memory of the hottest rank", "pipeline rank", "limit", "step time", "calibration:", "note:"):
        assert words in said


def test_the_packaged_cpu_recipe_is_estimated_without_a_limit(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "cpu-moe", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["memory"]["limit_gib"] is None
    assert document["memory"]["fits"]
    assert document["time"]["step_s"] > 0


def test_the_page_counts_what_lies_outside_the_allocator_once(small: str, tmp_path: Path) -> None:
    recipe = load_recipe(small)
    estimate = estimated(recipe)
    page = estimate_page(estimate)
    memory = estimate.memory
    assert f'<span class="figure">{gib(memory.upper_gib)}</span>' in page
    assert f"per GPU at most, limit 79.2 GiB less {gib(memory.outside_gib)} for context and communication" in page
