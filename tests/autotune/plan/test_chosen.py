"""`plan -o` writes a choice as a recipe that is that choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli import main
from autotune.plan.document import planned
from trainer.recipe import load_recipe

RECIPE = "model: deepseek-v2-lite\ncluster: {gpu: h100}\ntraining: {global_batch_size: 64}\n"


@pytest.fixture(autouse=True)
def _recipes(empty_folder: Path) -> None:
    (empty_folder / "r.yaml").write_text(RECIPE)


@pytest.mark.parametrize("number", [1, 3])
def test_a_choice_is_written_as_a_recipe(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "r.yaml", "--top", "1", "-o", "chosen.yaml", "--choice", str(number)]) == 0
    assert f"choice {number}: chosen.yaml" in capsys.readouterr().out
    wanted = planned(load_recipe("r.yaml"), top=number).choices[number - 1].recipe
    assert load_recipe("chosen.yaml").diff(wanted) == {}
    assert Path("chosen.yaml").read_text().startswith(f"# Choice {number} of moe-autotune plan: about ")


def test_a_choice_that_there_is_not_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "r.yaml", "-o", "chosen.yaml", "--choice", "9999"]) == 2
    assert "there are " in capsys.readouterr().err
    assert not Path("chosen.yaml").exists()
    assert main(["plan", "r.yaml", "-o", "r.yaml", "--force"]) == 2
