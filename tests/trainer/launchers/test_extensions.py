"""Ranks compile torch's extensions in the study's folder, free of locks of earlier ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.launchers.extensions import VARIABLE, extensions_environment


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_what_earlier_ranks_built_stays_and_their_locks_go(tmp_path: Path) -> None:
    folder = Path(extensions_environment(tmp_path, {})[VARIABLE])
    (folder / "share_storage_ext").mkdir()
    (folder / "share_storage_ext" / "lock").touch()
    (folder / "share_storage_ext" / "share_storage_ext.so").touch()
    assert extensions_environment(tmp_path, {}) == {VARIABLE: str(folder)}
    assert [path.name for path in folder.rglob("*.so")] == ["share_storage_ext.so"]
    assert not [*folder.rglob("lock")]


def test_a_folder_that_the_recipe_or_the_user_names_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert extensions_environment(tmp_path, {VARIABLE: "/scratch/extensions"}) == {}
    monkeypatch.setenv(VARIABLE, "/scratch/extensions")
    assert extensions_environment(tmp_path, {}) == {}
    assert not (tmp_path / "extensions").exists()
