"""The pictures of what a user sees are made by a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import screens
from tests.autotune.looks.browser import cut_off, needs_browser


@needs_browser
def test_every_page_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "BUDGET", 2)
    monkeypatch.setattr(screens, "WIDTHS", (600,))
    monkeypatch.setattr(screens, "SCHEMES", {"dark": 0})
    drawn = list(screens.draw(tmp_path))
    names = [
        f"{name}-600-dark.png" for name in ("report", "running", "diagnosis", "gap", "bisect", "studies", "status")
    ]
    assert [picture.name for picture in drawn] == names
    assert all(picture.stat().st_size > 10_000 for picture in drawn)
    pages = [page for page in tmp_path.rglob("*.html") if page.name != "status.html"]
    assert len(pages) >= 4
    assert {page.name: cut for page in pages if (cut := cut_off(page, tmp_path / "profile", 600))} == {}
