"""The page: one file, nothing fetched, readable by screen readers and without colour, and drawn by a real browser where
there is one."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from autotune.report import write_report
from autotune.tuning.events import Judged
from policies.noise import Noise
from policies.reason import Reason, ReasonKind
from tests.autotune.looks.browser import CHROMIUM, needs_browser
from tests.autotune.looks.parsed import Page
from tests.autotune.report.drawn_study import STEPS, events, write_study
from tests.conftest import HANG_S


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(write_study(tmp_path_factory.mktemp("drawn") / "study")).read_text()


def test_the_page_is_well_formed_with_unique_anchors(text: str) -> None:
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_nothing_is_fetched(text: str) -> None:
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'" in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#hatch", "#recompute"}


def test_every_figure_has_a_name_and_a_table_behind_it(text: str) -> None:
    assert Page(text).unnamed_figures == 0
    assert text.count("The figures as a table") == 6


def test_what_becomes_of_a_trial_shows_by_shape(text: str) -> None:
    for shape in ("accepted", "rejected", "inconclusive", "oom", "failed"):
        assert f'class="mark {shape}"' in text


def test_each_bar_adds_up_to_its_step(text: str) -> None:
    bars = re.findall(r'aria-label="[^"]*: compute [^"]*"', text)
    assert bars
    for bar in bars:
        shares = [float(share) for share in re.findall(r"([\d.]+) %", bar.partition(": compute")[2])]
        assert sum(shares) == pytest.approx(100.0, abs=0.5)


def test_a_band_of_noise_ends_with_its_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "detectable_gain", lambda _: 3.0)
    page = write_report(write_study(tmp_path / "study")).read_text()
    bands = [line for line in re.findall("<rect[^>]*>", page) if 'class="band"' in line]
    assert bands
    assert all(float(re.findall(r' y="([-\d.]+)"', band)[0]) >= 0 for band in bands)


def test_the_measure_that_accepted_a_gain_within_the_band_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noise, "detectable_gain", lambda _: 3.0)
    written = [_by_cpu_time(event) if isinstance(event, Judged) else event for event in events(STEPS)]
    page = write_report(write_study(tmp_path / "study", written)).read_text()
    said = page.partition("The shaded band above the best so far is the noise of wall-clock time")[2]
    assert re.search(r"Accepted within it: trial \d+ by CPU time of the ranks", said)
    assert "in CPU time)" in said
    plain = write_report(write_study(tmp_path / "plain", events(STEPS))).read_text()
    assert re.search(r"Accepted within it: trial \d+ by wall-clock time", plain)


def _by_cpu_time(event: Judged) -> Judged:
    if event.reason is None or event.reason.kind is not ReasonKind.FAR_BEYOND_NOISE:
        return event
    return msgspec.structs.replace(event, reason=Reason(kind=ReasonKind.CPU_TIME, figures=event.reason.figures))


def test_text_from_outside_stays_text(tmp_path: Path) -> None:
    hostile = "</script><script>document.title='taken'</script> & <b>"
    steps = (replace(STEPS[0], because=hostile), replace(STEPS[1], because=hostile))
    page = write_report(write_study(tmp_path / "study", events(steps))).read_text()
    assert hostile not in page
    assert "&lt;/script&gt;&lt;script&gt;" in page
    assert Page(page).open == []


def test_a_study_without_traces_still_has_a_page(tmp_path: Path) -> None:
    page = write_report(write_study(tmp_path / "study", events(STEPS[:1]))).read_text()
    assert Page(page).open == []
    assert "Where the step goes" not in page


@needs_browser
def test_a_browser_draws_the_page_without_a_script_error(text: str, tmp_path: Path) -> None:
    page, picture = tmp_path / "report.html", tmp_path / "page.png"
    page.write_text(text)
    errors = _draw(page, picture, tmp_path / "profile")
    assert picture.stat().st_size > 50_000
    assert not re.search(r"CONSOLE.*(Error|Refused|violates)", errors), errors


def _draw(page: Path, picture: Path, profile: Path) -> str:
    """Draws the page; returns the browser's log."""
    flags = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
    )  # fmt: skip
    command = [CHROMIUM, *flags, f"--user-data-dir={profile}", f"--screenshot={picture}", "--window-size=1200,3000"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=HANG_S, check=True)
    print(done.stderr, file=sys.stderr)
    return done.stderr


def test_a_study_in_which_nothing_ran_draws_no_empty_chart(tmp_path: Path) -> None:
    page = write_report(write_study(tmp_path / "study", events(STEPS[:1]))).read_text()
    assert "Throughput of 1 trials" not in page
    assert "No trial finished its steps: there is no throughput to draw." in page
