"""`check --fix` writes the nearest legal recipe; `check --rules` names every rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import main
from trainer.recipe import load_recipe
from trainer.recipe.rules import RULES

BAD = "model: qwen3-30b-a3b\ncluster: {gpu: h100, nodes: 2}\nparallelism: {tp: 3, ep: 8}\n"
FOR_MEGATRON_LM = BAD.replace("tp: 3", "tp: 2, etp: 1") + (
    "knobs: {use_distributed_optimizer: true, sequence_parallel: true, CUDA_DEVICE_MAX_CONNECTIONS: 8}\n"
)


@pytest.fixture(autouse=True)
def _recipes(empty_folder: Path) -> None:
    (empty_folder / "bad.yaml").write_text(BAD)
    (empty_folder / "lm.yaml").write_text(FOR_MEGATRON_LM)


def test_the_nearest_legal_recipe_is_written_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "bad.yaml", "--fix", "-o", "fixed.yaml"])
    assert "tensor_model_parallel_size 3 → " in capsys.readouterr().out
    assert "# tensor_model_parallel_size: " in Path("fixed.yaml").read_text()
    main(["check", "fixed.yaml"])
    assert "0 errors" in capsys.readouterr().out


def test_without_a_file_the_recipe_is_all_that_stdout_gets(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "bad.yaml", "--fix"])
    said = capsys.readouterr()
    assert "heads-over-tp" in said.err
    Path("fixed.yaml").write_text(said.out)
    assert load_recipe("fixed.yaml").model == "qwen3-30b-a3b"


def test_a_recipe_is_fixed_for_one_framework(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "lm.yaml", "--for", "megatron-lm"]) == 1
    assert "CUDA_DEVICE_MAX_CONNECTIONS 8 → 1" in capsys.readouterr().out
    assert main(["check", "lm.yaml", "--for", "megatron-lm", "--fix", "-o", "fixed.yaml"]) == 0
    assert main(["check", "fixed.yaml", "--for", "megatron-lm"]) == 0


def test_the_recipe_itself_is_never_replaced_and_no_file_without_force(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "bad.yaml", "--fix", "-o", "bad.yaml", "--force"]) == 2
    assert "this command reads it" in capsys.readouterr().err
    assert main(["check", "bad.yaml", "--fix", "-o", "lm.yaml"]) == 2
    assert main(["check", "bad.yaml", "-o", "new.yaml"]) == 2
    assert "add --fix" in capsys.readouterr().err
    assert (Path("bad.yaml").read_text(), Path("lm.yaml").read_text()) == (BAD, FOR_MEGATRON_LM)


def test_every_rule_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--rules", "--json"]) == 0
    said = capfd.readouterr()
    assert {rule["id"] for rule in json.loads(said.out)["rules"]} == {rule.id for rule in RULES}
    assert all(f"  {rule.id}:" in said.err for rule in RULES)
