"""Checks that every output with figures of a simulated study calls them simulated."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.looks.quantities import UNMEASURED


@pytest.fixture(scope="module")
def folder(ended: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yields a simulated study `s`, and a copy of a trace outside of it."""
    folder = tmp_path_factory.mktemp("simulated")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shutil.copytree(ended / "studies/sim-1", "s")
        shutil.copy(folder / "s/bursts/0001/trace/rank0.pt.trace.json.gz", folder)
        yield folder


@pytest.mark.parametrize(
    "line",
    [
        "diagnose s/0",
        "diagnose s/bursts/0001",
        "diagnose rank0.pt.trace.json.gz",
        "compare s/0 s/0",
        "compare rank0.pt.trace.json.gz s/0",
        "status s",
    ],
)
def test_figures_of_a_simulation_are_marked(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 0
    assert UNMEASURED in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("line", ["diagnose s/0", "compare s/0 s/0"])
def test_pages_of_a_simulation_are_marked(line: str, folder: Path) -> None:
    assert main([*line.split(), "--html", "page.html", "--force"]) == 0
    assert '<span class="where">simulated</span>' in Path("page.html").read_text()


def test_a_simulated_report_shows_no_losses(folder: Path) -> None:
    assert "losses" not in Path("s/report.md").read_text().lower()
