"""The page of a study that runs: its status, automatic reloads, and never a half-written page."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.report import write_report, write_running
from autotune.session.running_page import RunningPage
from autotune.tuning.events import BurstFinished
from autotune.tuning.history import History
from tests.autotune.looks.browser import document_of, needs_browser
from tests.autotune.looks.parsed import Page
from tests.autotune.report.drawn_study import STEPS, clocked, events, write_study

NOW = 4000.0


def running(folder: Path, count: int = 30) -> str:
    folder.mkdir()
    write_running(History(clocked(events())[:count]), study_dir=folder, now=NOW)
    return (folder / "report.html").read_text()


def test_the_page_says_first_where_the_study_stands(tmp_path: Path) -> None:
    text = running(tmp_path / "s")
    assert "<title>running: cpu-moe: " in text
    for said in ("running since", "of 20", "its wall", "cost", "bursts, ", "read", "earlier if it converges"):
        assert said in text
    assert "How it ended" not in text
    assert "location.reload()" in text


@pytest.mark.parametrize("count", range(2, 40, 3))
def test_the_page_can_be_written_after_any_event_and_is_well_formed(count: int, tmp_path: Path) -> None:
    page = Page(running(tmp_path / "s", count))
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_the_page_of_an_ended_study_reads_itself_no_more(tmp_path: Path) -> None:
    text = write_report(write_study(tmp_path / "s")).read_text()
    assert "reload" not in text
    assert "How it ended" in text


def test_a_page_that_cannot_be_written_stops_nothing_and_is_said(tmp_path: Path) -> None:
    messages: list[str] = []
    page = RunningPage(folder=tmp_path / "nowhere", say=messages.append, write=write_running, clock=lambda: 0.0)
    history = History(events())
    page.show(next(event for event in events() if isinstance(event, BurstFinished)), history)
    assert messages == ["report.html could not be written: No such file or directory"]


def test_an_error_in_a_page_does_not_end_the_study(tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a fault of ours")

    messages: list[str] = []
    page = RunningPage(folder=tmp_path, say=messages.append, write=broken, clock=lambda: 0.0)
    page.show(next(event for event in events() if isinstance(event, BurstFinished)), History(events()))
    assert messages == ["report.html could not be written: KeyError: 'a fault of ours'"]


def test_pages_take_a_twentieth_of_the_time_at_most(tmp_path: Path) -> None:
    ticks = iter([0.0, 0.0, 1.0, 10.0, 20.0, 21.0])  # made, then before and after each page
    page = RunningPage(folder=tmp_path, say=print, write=write_running, clock=lambda: next(ticks))
    finished = next(event for event in events() if isinstance(event, BurstFinished))
    written = []
    for _ in range(3):
        (tmp_path / "report.html").unlink(missing_ok=True)
        page.show(finished, History(events()))
        written.append((tmp_path / "report.html").exists())
    assert written == [True, False, True]


def test_nothing_is_drawn_of_a_study_in_which_nothing_ran(tmp_path: Path) -> None:
    text = write_report(write_study(tmp_path / "s", events(STEPS[:1]))).read_text()
    assert "Throughput of" not in text
    assert "out of memory" in text


@needs_browser
def test_a_browser_runs_the_page_and_says_when_it_is_late(tmp_path: Path) -> None:
    running(tmp_path / "s")
    drawn = document_of(tmp_path / "s" / "report.html", tmp_path / "profile")
    assert "data-error" not in drawn
    assert 'id="late" data-after="' in drawn
    late = drawn[drawn.index('id="late"') :].partition(">")[0]
    assert "hidden" not in late, "a page of 1970 is late"
