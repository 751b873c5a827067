"""A recipe file that several of these tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.autotune.outside import SIMULATED


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(SIMULATED)
    return path
