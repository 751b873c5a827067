"""Fixtures of the tests of commands: a folder to run them in, and a recipe there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.autotune.outside import SMALL


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
