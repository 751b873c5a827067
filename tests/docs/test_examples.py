"""An example that a document shows gives what the document shows, within the bounds that it states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.cli import main
from tests.places import ROOT

SHARE = 0.05  # docs/simulated.md
COST = re.compile(r"cost: (\d+) bursts, ([\d.]+) simulated GPU-hours")
BEST = re.compile(r"best: trial \d+ .*?([\d.]+)× trial 0")


def figures(text: str) -> tuple[int, float, float]:
    """Bursts, GPU-hours and the speed-up of the end of a run."""
    cost, best = COST.search(text), BEST.search(text)
    assert cost, text
    assert best, text
    return int(cost[1]), float(cost[2]), float(best[1])


@pytest.mark.thorough
def test_the_simulated_example_gives_what_its_document_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "simulated.md").read_text(encoding="utf-8")
    recipe, command = re.search(r"```yaml\n(.*?)```", text, re.DOTALL), re.search(r"`moe-autotune (run .*?)`", text)
    assert recipe
    assert command
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "500")
    Path("recipe.yaml").write_text(recipe[1])
    assert main(command[1].split()) == 0
    bursts, hours, speedup = figures(text)
    bursts_now, hours_now, speedup_now = figures(capsys.readouterr().out)
    assert bursts_now == bursts
    assert hours_now == pytest.approx(hours, rel=SHARE)
    assert speedup_now == pytest.approx(speedup, rel=SHARE)
