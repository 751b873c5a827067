"""Fixtures of the tests of commands: a folder to run them in, a recipe there, and studies that many tests read."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from autotune.cli import main
from tests.autotune.outside import SEED, SIMULATED, SMALL


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the empty folder that the test runs in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def recipe_text() -> str:
    """Returns the text of the recipe; a module may override it."""
    return SMALL


@pytest.fixture
def recipe(empty_folder: Path, recipe_text: str) -> Path:
    path = empty_folder / "base.yaml"
    path.write_text(recipe_text)
    return path


@pytest.fixture(scope="session")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder in which SMALL, as base.yaml, was tuned for three bursts: the study is studies/sim-1, what the
    command printed is in said.txt. Tests copy what they change."""
    return _ran(tmp_path_factory.mktemp("ended"), SMALL, budget=3, code=0)


@pytest.fixture(scope="session")
def infeasible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a study, studies/sim-1, of DeepSeek-V3 on two nodes, where no recipe fits."""
    return _ran(
        tmp_path_factory.mktemp("infeasible"), SIMULATED.replace("qwen3-30b-a3b", "deepseek-v3"), budget=1, code=1
    )


def _ran(folder: Path, recipe: str, *, budget: int, code: int) -> Path:
    (folder / "base.yaml").write_text(recipe)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.chdir(folder)
        assert main(["run", "base.yaml", "--budget", str(budget), "--seed", SEED]) == code
    (folder / "said.txt").write_text(said.getvalue())
    return folder
