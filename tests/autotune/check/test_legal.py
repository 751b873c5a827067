"""Before a burst: what cannot run here is refused, and nothing is written for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.check.legal import refuse_without_gpus
from autotune.cli import main
from trainer.errors import ToolError
from trainer.recipe import Recipe, load_recipe

GPU_RECIPE = "model: mixtral-8x7b\ncluster: {gpu: h100, gpus_per_node: 8}\nparallelism: {ep: 8}\n"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setenv("PATH", "")
    (tmp_path / "gpu.yaml").write_text(GPU_RECIPE)
    return load_recipe(str(tmp_path / "gpu.yaml"))


def test_a_gpu_recipe_is_refused_where_there_is_no_gpu(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="trains on h100 GPUs, and this machine has none") as raised:
        refuse_without_gpus(recipe, devices=tmp_path)
    assert "doctor" in raised.value.hint


def test_a_gpu_recipe_goes_on_where_a_device_is(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    refuse_without_gpus(recipe, devices=tmp_path)


def test_recipes_of_cpus_and_of_the_simulator_need_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "simulated.yaml").write_text(GPU_RECIPE + "burst: {engine: simulated}\n")
    for name in ("cpu-moe", str(tmp_path / "simulated.yaml")):
        refuse_without_gpus(load_recipe(name), devices=tmp_path)


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has GPUs")
def test_the_refusal_leaves_no_study_and_says_that_a_tool_failed(recipe: Recipe, tmp_path: Path) -> None:
    assert main(["run", str(tmp_path / "gpu.yaml"), "--study", str(tmp_path / "study")]) == 3
    assert not (tmp_path / "study").exists()


def test_engine_command_without_a_trainer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("model: mixtral-8x7b\ncluster: {gpu: cpu}\nburst: {engine: command}\n")
    assert main(["run", str(tmp_path / "mine.yaml"), "--study", str(tmp_path / "study")]) == 2
    said = capsys.readouterr().err
    assert "no trainer is named" in said
    assert "moe-autotune import" in said


def test_a_pattern_that_reads_nothing_is_refused_before_any_burst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "model: mixtral-8x7b\ncluster: {gpu: cpu}\nburst: {engine: command}\n"
        "trainer: {kind: custom, command: [train], patterns: {loss: 'loss (.*)'}}\n"
    )
    assert main(["run", str(tmp_path / "mine.yaml"), "--study", str(tmp_path / "study")]) == 2
    assert "trainer.patterns.loss" in capsys.readouterr().err
