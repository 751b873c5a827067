"""Renders pages in a real browser, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.autotune.diagnose.drawn_page import Draw
from tests.autotune.looks.browser import document_of


@pytest.fixture
def drawn(tmp_path: Path) -> Draw:
    def draw(page: str, fragment: str = "") -> str:
        (tmp_path / "page.html").write_text(page, encoding="utf-8")
        return document_of(tmp_path / "page.html", tmp_path / "profile", fragment)

    return draw
