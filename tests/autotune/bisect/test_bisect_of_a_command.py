"""`bisect` with the user's own trainer (engine command): variables, lines of the shell and options."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.cli import main
from tests.conftest import HANG_S

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("light_agent")]
TOY = str(Path(__file__).with_name("toy_trainer.py"))
INERT = ["--log-throughput", "--timing-log-level", "1"]


def recipe(*more: str) -> dict[str, Any]:
    return {
        "name": "toy",
        "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512},
        "cluster": {"gpu": "cpu", "nodes": 1, "gpus_per_node": 1},
        "training": {"seq_length": 64, "global_batch_size": 4, "precision": "fp32"},
        "burst": {
            "engine": "command",
            "warmup_steps": 1,
            "measure_steps": 4,
            "trace_steps": 0,
            "deadline_s": HANG_S,
        },
        "trainer": {
            "kind": "custom",
            "command": [sys.executable, TOY, "{args}", "--exit-interval", "{iterations}", *more],
            "trace": "none",
        },
    }


def bisected(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    Path("a.yaml").write_text(yaml.safe_dump(recipe()))
    assert main(["bisect", "a.yaml", *words, "--budget", "12", "--json"]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert found["answered"] == "culprits"
    return found


def names(found: dict[str, Any]) -> list[list[str]]:
    return [each["differences"] for each in found["culprits"]]


@pytest.fixture(autouse=True)
def _folder(empty_folder: Path) -> None:
    pass


def test_a_line_of_the_shell_that_slows_the_trainer_down_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    found = bisected(capfd, "--env-b", "export TOY_SLOW=1", "--env-b", "TOY_OTHER=1", "--env-b", "TOY_MORE=2")
    assert names(found) == [["trainer.setup"]]
    assert found["culprits"][0]["time"]["change"] == pytest.approx(0.5, abs=0.05)


def test_a_variable_that_ends_in_nan_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    found = bisected(capfd, "--env-b", "TOY_NAN=1", "--env-b", "TOY_OTHER=1", "--env-b", "TOY_MORE=2")
    assert (found["symptom"], names(found)) == ("nan", [["trainer.env.TOY_NAN"]])


def test_an_option_that_moves_the_loss_out_of_the_band_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    Path("b.yaml").write_text(yaml.safe_dump(recipe(*INERT, "--other-data")))
    found = bisected(capfd, "b.yaml")
    assert (found["symptom"], names(found)) == ("loss", [["trainer.command --other-data"]])
