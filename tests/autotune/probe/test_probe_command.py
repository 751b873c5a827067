"""`moe-autotune probe`: the document, the table, and the probe at the start of a study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from autotune.cli import main
from autotune.probe.document import Consequence, document_of
from autotune.probe.study import probe_before
from autotune.probe.terminal import show_probe
from autotune.probe.words import consequence
from autotune.tuning.journal import read_study
from autotune.tuning.study import create
from policies.tuner.probe_allowance import probe_s
from policies.tuner.tuner import Tuner
from trainer.microbenchmarks.groups import rows_of
from trainer.microbenchmarks.row import failed, measured
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.load_machine import load_machine_file

RECIPE = """name: two-nodes
model: qwen3-30b-a3b
cluster: {gpu: h100, nodes: 2}
parallelism: {tp: 3, ep: 8}
burst: {engine: simulated, machine: one-slow-node}
"""


def test_a_recipe_that_breaks_rules_is_probed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    assert main(["probe", str(tmp_path / "r.yaml"), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["schema"], document["ranks"], document["simulated"]) == (1, 16, True)
    slow = {row["slow_rank"] // 8 for row in document["rows"] if row["slow_rank"] is not None}
    assert slow == {1}
    assert {"gemm", "network"} <= {factor["factor"] for factor in document["factors"]}


def test_each_kind_of_consequence_has_words() -> None:
    recipe = load_recipe("deepseek-v3-1024xh100")
    gemm, *_ = (row for row in rows_of(recipe) if row.kind == "gemm")
    expected = document_of(recipe, [gemm], ranks=8, seconds=1.0).rows[0].expected
    assert expected is not None
    rows = [
        measured(gemm, {0: [expected], 1: [1.3 * expected]}),
        measured(gemm, {0: [2 * expected, 3 * expected, 2 * expected]}),
        measured(gemm, {0: [0.5 * expected]}),
        failed(gemm, "no time was left"),
    ]
    found = document_of(recipe, rows, ranks=8, seconds=1.0).rows
    assert [row.consequence for row in found] == [
        Consequence.AS_EXPECTED,
        Consequence.SLOWER,
        Consequence.FASTER,
        Consequence.NOT_MEASURED,
    ]
    assert [consequence(row) for row in found] == [
        "as expected",
        "2.00 times slower",
        "2.00 times faster",
        "not measured",
    ]
    console = Console(record=True, width=120)
    show_probe(console, document_of(recipe, rows, ranks=8, seconds=1.0))
    text = console.export_text()
    for note in (
        "slower than the median of the ranks: 1; most in dense GEMMs of a layer, fp8_blockwise (1.30 times)",
        ": is something else running there?",
        "no time was left",
    ):
        assert note in text


def test_a_study_probes_once_pays_for_it_and_its_tuner_knows(tmp_path: Path) -> None:
    recipe = Recipe.model_validate(
        {
            "name": "s",
            "model": "qwen3-30b-a3b",
            "cluster": {"gpu": "h100", "nodes": 2},
            "burst": {"engine": "simulated", "machine": {"links": {"network": 0.5}}},
        }
    )
    study = create(recipe, given=b"", folder=tmp_path / "s", seed=1, clock=lambda: 0.0, listener=lambda e, h: None)
    for _ in range(2):
        probe_before(study, budget=20, max_gpu_hours=None, rows=True)
    study.close()
    history = read_study(tmp_path / "s")
    assert history.probed is not None
    assert history.gpu_hours == pytest.approx(16 * history.probed.seconds / 3600)
    assert Tuner(recipe, 1, probed=history.rows).surrogate([]).time.theta["network"] < -0.5


def test_a_probe_takes_a_twentieth_of_the_study_at_most() -> None:
    recipe = load_recipe("deepseek-v3-1024xh100")
    assert probe_s(recipe, budget=20, max_gpu_hours=None) == 120.0
    assert probe_s(recipe, budget=20, max_gpu_hours=7.0) == pytest.approx(0.05 * 7 * 3600 / 16)
    assert probe_s(recipe, budget=20, max_gpu_hours=4.0) is None


def test_the_machine_file_of_a_probe_has_the_keys_of_the_simulation(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE.replace("one-slow-node", "{links: {network: 0.5, latency: 2.0}}"))
    assert main(["probe", str(tmp_path / "r.yaml"), "--machine", str(tmp_path / "ours.yaml")]) == 0
    found = load_machine_file(str(tmp_path / "ours.yaml"))
    assert found.links.network == pytest.approx(0.5, rel=0.1)
    assert found.links.latency == pytest.approx(2.0, rel=0.15)
    assert found.compute.dense_gemm == pytest.approx(1.0, rel=0.05)
    assert found.estimate is not None
    assert found.estimate.source == "a probe"
