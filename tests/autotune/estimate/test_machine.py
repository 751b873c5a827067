"""`--machine`: what was learned of a cluster instead of the tables, said in every answer, refused for another GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from tests.autotune.outside import SMALL

MACHINE = """\
name: ours
links: {network: 0.5}
estimate:
  source: night
  trials: 4
  gpu: h100
  factors: {gemm: {mean: -0.3, deviation: 0.05}, of tomorrow: {mean: 1.0, deviation: 0.1}}
  memory: {activations: {mean: 0.2, deviation: 0.05}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.yaml").write_text(MACHINE)
    (tmp_path / "h100.yaml").write_text(SMALL)
    (tmp_path / "h200.yaml").write_text(SMALL.replace("h100", "h200"))
    return tmp_path


def answer(line: str, capfd: pytest.CaptureFixture[str]) -> Any:
    assert main([*line.split(), "--json"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.usefixtures("folder")
def test_an_estimate_takes_the_factors_and_says_which_machine_they_are_of(capfd: pytest.CaptureFixture[str]) -> None:
    tables = answer("estimate h100.yaml", capfd)
    ours = answer("estimate h100.yaml --machine ours.yaml", capfd)
    assert "machine" not in tables
    assert ours["machine"] == {
        "name": "ours",
        "file": "ours.yaml",
        "source": "night",
        "trials": 4,
        "gpu": "h100",
        "factors": 2,
        "unknown": ["of tomorrow"],
    }
    assert ours["time"]["step_s"] > tables["time"]["step_s"]
    assert ours["memory"]["by_part"]["activations"] > tables["memory"]["by_part"]["activations"]
    assert ours["simulated_step_s"] > 0


@pytest.mark.usefixtures("folder")
def test_a_check_predicts_memory_by_what_was_learned(capfd: pytest.CaptureFixture[str]) -> None:
    tables, ours = (answer(f"check h100.yaml{words}", capfd) for words in ("", " --machine ours.yaml"))
    assert ours["memory"]["peak_gib"] > tables["memory"]["peak_gib"]


@pytest.mark.parametrize("command", ["estimate h200.yaml", "plan h200.yaml", "check h200.yaml", "init --gpu h200"])
@pytest.mark.usefixtures("folder")
def test_a_machine_of_another_gpu_is_refused(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--machine", "ours.yaml"]) == 2
    assert "it was learned on h100, this recipe is for h200" in capfd.readouterr().err


@pytest.mark.usefixtures("folder")
def test_a_machine_that_nothing_was_learned_for_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "h100.yaml", "--machine", "slow-network"]) == 2
    assert "no section `estimate`" in capfd.readouterr().err
