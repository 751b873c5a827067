"""All studies of a folder: each in a row, what cannot be read said, one page that compares them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.studies.gathered import gathered
from autotune.studies.page import studies_page
from tests.autotune.looks.browser import document_of, needs_browser
from tests.autotune.looks.parsed import Page
from tests.autotune.report.drawn_study import STEPS, events, write_study


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder of two studies, one of them a level deeper, one in which nothing ran, and one with an invalid
    journal."""
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path / "studies" / "a")
    write_study(tmp_path / "studies" / "team" / "b", events(ended=False))
    write_study(tmp_path / "studies" / "c", events(STEPS[:1]))
    broken = tmp_path / "studies" / "broken"
    broken.mkdir()
    (broken / "journal.jsonl").write_text("{}\n")
    return tmp_path / "studies"


def test_each_study_says_what_was_tuned_what_it_gave_its_walls_and_its_cost(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["studies", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    rows = {row["folder"]: row for row in document["studies"]}
    assert set(rows) == {"studies/a", "studies/team/b", "studies/c"}
    first = rows["studies/a"]
    assert first["speedup"] == pytest.approx(1.83, abs=0.01)
    assert first["status"] == "converged"
    assert first["walls"][0].startswith("memory 31.0 %")
    assert first["cost"] == "12 bursts, 0.21 rank-hours"
    assert rows["studies/team/b"]["state"] == "stopped"
    assert rows["studies/c"]["speedup"] is None
    assert [each["folder"] for each in document["unread"]] == ["studies/broken"]


def test_a_terminal_gets_a_few_lines_a_study(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studies", "studies"]) == 0
    said = capsys.readouterr().out
    assert "studies/a: 1.83× (" in said
    assert "studies/c: nothing runs" in said
    assert "studies/team/b: 1.83× (" in said
    assert "killed" in said
    assert "broken: not read" in said
    assert "3 studies" in said


def test_a_folder_without_studies_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["studies"]) == 2
    assert "no study here" in capsys.readouterr().err


def test_a_folder_that_cannot_be_read_is_not_called_empty(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main(["studies"]) == 2
    assert "it cannot be read" in capsys.readouterr().err


def test_the_page_links_to_each_report_from_where_it_lies(folder: Path) -> None:
    (folder / "a" / "report.html").write_text("")
    page = Page(studies_page(gathered(folder, now=0.0), page_folder=folder.parent))
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert page.links == [os.path.join("studies", "a", "report.html")]


def test_a_page_is_not_written_over_anything_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.html").write_text("mine")
    assert main(["studies", "--html", "mine.html"]) == 2
    assert Path("mine.html").read_text() == "mine"
    assert main(["studies", "--html", "page.html"]) == 0
    assert main(["studies", "--html", "page.html"]) == 0


@needs_browser
def test_a_browser_draws_the_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(studies_page(gathered(folder, now=0.0), page_folder=tmp_path))
    drawn = document_of(page, tmp_path / "profile")
    assert "data-error" not in drawn
    assert "Speed-up of each study" in drawn
